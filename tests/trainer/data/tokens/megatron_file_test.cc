// Documents of Megatron's files, and every number of an index that is wrong. The oracle,
// megatron-core's own reader, is in tests/oracles/token_data_test.py.
#include "trainer/data/tokens/megatron_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/data/tokens/scratch_folder.h"

namespace keel::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Index {
  uint64_t version = 1;
  uint8_t dtype = 8;
  std::vector<int32_t> lengths = {2, 0, 3, 1};
  std::vector<int64_t> pointers = {0, 4, 4, 10};
  std::vector<int64_t> documents = {0, 2, 3, 4};
  std::string modes;
  std::optional<uint64_t> sequence_count, document_count;

  std::string ToBytes() const {
    std::string bytes("MMIDIDX\0\0", 9);
    bytes += Bytes(version) + Bytes(dtype);
    bytes += Bytes(sequence_count.value_or(lengths.size()));
    bytes += Bytes(document_count.value_or(documents.size()));
    for (const int32_t length : lengths) bytes += Bytes(length);
    for (const int64_t pointer : pointers) bytes += Bytes(pointer);
    for (const int64_t document : documents) bytes += Bytes(document);
    return bytes + modes;
  }
};

class MegatronFileTest : public ::testing::Test {
 protected:
  MegatronFileTest() {
    std::string ids;
    for (uint16_t id = 10; id < 16; ++id) ids += Bytes(id);
    folder_.Write("x.bin", ids);
  }
  Result<std::shared_ptr<const MegatronFile>> Open(const Index& index) {
    return OpenBytes(index.ToBytes());
  }
  Result<std::shared_ptr<const MegatronFile>> OpenBytes(const std::string& bytes) {
    folder_.Write("x.idx", bytes);
    return MegatronFile::Open(folder_.Path("x"));
  }
  std::string Refusal(const Index& index) {
    const auto file = Open(index);
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidData);
    EXPECT_THAT(file.status().message(), HasSubstr("x.idx"));
    return file.status().message();
  }

  ScratchFolder folder_;
};

TEST_F(MegatronFileTest, DocumentsAreTheirSequencesInOrder) {
  const auto file = ValueOrThrow(Open({}));
  ASSERT_EQ(file->documents(), 3);
  EXPECT_EQ(file->Begin(1), 2);
  EXPECT_EQ(file->Begin(2), 5);
  EXPECT_EQ(file->tokens(), 6);
  std::vector<int32_t> ids(4);
  ThrowIfError(file->Read(1, ids, {}));
  EXPECT_THAT(ids, ElementsAre(11, 12, 13, 14));
}

TEST_F(MegatronFileTest, SequencesMayLieInAnyOrderAndShareTokens) {
  Index index;
  index.pointers = {10 - 2, 0, 0, 4};
  const auto file = ValueOrThrow(Open(index));
  std::vector<int32_t> ids(6);
  ThrowIfError(file->Read(0, ids, {}));
  EXPECT_THAT(ids, ElementsAre(14, 15, 10, 11, 12, 12));
}

TEST_F(MegatronFileTest, EveryWidthOfIntegerIsRead) {
  const auto read = [&](uint8_t dtype, const std::string& bin) {
    folder_.Write("x.bin", bin);
    Index index;
    index.dtype = dtype;
    index.lengths = {3};
    index.pointers = {0};
    index.documents = {0, 1};
    std::vector<int32_t> ids(3);
    const auto file = ValueOrThrow(Open(index));
    ThrowIfError(file->Read(0, ids, {}));
    return ids;
  };
  EXPECT_THAT(read(1, "\x01\xff\x07"), ElementsAre(1, 255, 7));
  EXPECT_THAT(read(3, Bytes<int16_t>(1) + Bytes<int16_t>(32767) + Bytes<int16_t>(0)),
              ElementsAre(1, 32767, 0));
  EXPECT_THAT(read(4, Bytes<int32_t>(1) + Bytes<int32_t>(70000) + Bytes<int32_t>(0)),
              ElementsAre(1, 70000, 0));
  EXPECT_THAT(read(5, Bytes<int64_t>(1) + Bytes<int64_t>(70000) + Bytes<int64_t>(0)),
              ElementsAre(1, 70000, 0));
  EXPECT_THROW(read(2, "\x01\xff\x07"), Error);  // negative
  EXPECT_THROW(read(5, Bytes<int64_t>(1) + Bytes(int64_t{1} << 31) + Bytes<int64_t>(0)), Error);
}

TEST_F(MegatronFileTest, WrongNumbersAreRefusedByName) {
  const auto with = [](auto change) {
    Index index;
    change(index);
    return index;
  };
  EXPECT_THAT(Refusal(with([](Index& i) { i.version = 2; })), HasSubstr("version 2"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.dtype = 7; })), HasSubstr("floating point"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.dtype = 99; })), HasSubstr("dtype 99"));
  for (const uint64_t count : {uint64_t{5}, uint64_t{3}, UINT64_MAX, uint64_t{1} << 61}) {
    Refusal(with([&](Index& i) { i.sequence_count = count; }));
    Refusal(with([&](Index& i) { i.document_count = count; }));
  }
  EXPECT_THAT(Refusal(with([](Index& i) { i.lengths[2] = 5; })), HasSubstr("sequence 2: 5 tokens"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.lengths[0] = -1; })), HasSubstr("sequence 0: -1"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.pointers[3] = -2; })), HasSubstr("at byte -2"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.pointers[3] = INT64_MAX; })), HasSubstr("sequence 3"));
  EXPECT_THAT(Refusal(with([](Index& i) {
                i.documents = {0, 3, 2, 4};
              })),
              HasSubstr("document index 2 is 2"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.documents = {0, 5}; })), HasSubstr("document index 1"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.documents = {1, 4}; })), HasSubstr("document index 0"));
  EXPECT_THAT(Refusal(with([](Index& i) {
                i.documents = {0, 3};
              })),
              HasSubstr("end at sequence 3 of 4"));
  EXPECT_THAT(Refusal(with([](Index& i) { i.modes = std::string("\0\1\0\0", 4); })),
              HasSubstr("sequence 1 has mode 1"));
  ValueOrThrow(Open(with([](Index& i) { i.modes = std::string(4, '\0'); })));
  const std::string good = Index().ToBytes();
  for (size_t i = 0; i < good.size(); ++i) EXPECT_FALSE(OpenBytes(good.substr(0, i)).ok()) << i;
}

TEST_F(MegatronFileTest, AnyOfItsNamesNamesIt) {
  folder_.Write("x.idx", Index().ToBytes());
  for (const char* name : {"x", "x.idx", "x.bin"})
    EXPECT_EQ(MegatronFile::PrefixOf(folder_.Path(name)), folder_.Path("x"));
  EXPECT_EQ(MegatronFile::PrefixOf(folder_.Path("y.bin")), std::nullopt);
}

}  // namespace
}  // namespace keel::trainer
