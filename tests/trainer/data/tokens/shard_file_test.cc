// A shard gives back what was written, and refuses every damage; so do the reader's bounds on
// headers that are consistent and absurd.
#include "trainer/data/tokens/shard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "common/files/file_system.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/tokens/shard_writer.h"

namespace keel::trainer {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const Digest128 kTokenizer{7, 9};

struct Document {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;
};

class ShardFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<Document>& documents,
                    uint32_t id_bytes) {
    auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), false));
    auto writer = ValueOrThrow(ShardWriter::Create(*files, name, id_bytes, kTokenizer));
    for (const Document& d : documents) ThrowIfError(writer.Add(d.ids, d.learn));
    ThrowIfError(writer.Finish({{"program", "keel 0.1.0"}}).status());
    return folder_.Path(name);
  }
  static std::vector<Document> Make(int64_t count, int32_t below, bool masks) {
    std::vector<Document> documents(static_cast<size_t>(count));
    uint32_t state = 1;
    const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 8; };
    for (Document& d : documents) {
      d.ids.resize(1 + next() % 700);
      for (int32_t& id : d.ids) id = static_cast<int32_t>(next() % static_cast<uint32_t>(below));
      d.learn.assign(d.ids.size(), 1);
      if (masks) {
        for (uint8_t& learn : d.learn) learn = next() % 2;
      }
    }
    return documents;
  }
  // All that a reader may do with a file, until something is refused.
  static Status ReadAll(const std::string& path) {
    KEEL_ASSIGN_OR_RETURN(const auto shard, ShardFile::Open(path));
    std::vector<int32_t> ids(static_cast<size_t>(shard->tokens()));
    std::vector<uint8_t> learn(ids.size());
    KEEL_RETURN_IF_ERROR(shard->Read(0, ids, learn));
    KEEL_RETURN_IF_ERROR(shard->Made().status());
    return shard->Verify();
  }

  ScratchFolder folder_;
};

TEST_F(ShardFileTest, DocumentsComeBackAsTheyWereWritten) {
  for (const uint32_t id_bytes : {2u, 4u}) {
    for (const bool masks : {false, true}) {
      const auto documents = Make(400, id_bytes == 2 ? 0x10000 : INT32_MAX, masks);
      const std::string path =
          Write(std::to_string(id_bytes) + (masks ? "m" : "p"), documents, id_bytes);
      const auto shard = ValueOrThrow(ShardFile::Open(path));
      ASSERT_EQ(shard->documents(), 400);
      EXPECT_EQ(shard->learns_all(), !masks);
      EXPECT_EQ(shard->header().tokenizer, kTokenizer);
      for (int64_t d = 0; d < 400; ++d) {
        const Document& expected = documents[static_cast<size_t>(d)];
        Document found;
        found.ids.resize(static_cast<size_t>(shard->Begin(d + 1) - shard->Begin(d)));
        found.learn.resize(found.ids.size());
        ThrowIfError(shard->Read(shard->Begin(d), found.ids, found.learn));
        ASSERT_EQ(found.ids, expected.ids);
        ASSERT_EQ(found.learn, expected.learn);
        ASSERT_EQ(shard->DocumentOf(shard->Begin(d)), d);
        ASSERT_EQ(shard->DocumentOf(shard->Begin(d + 1) - 1), d);
      }
      ThrowIfError(shard->Verify());
    }
  }
}

TEST_F(ShardFileTest, TheDigestIsOfTheContentAndNotOfItsStorage) {
  const auto documents = Make(20, 300, true);
  const auto narrow = ValueOrThrow(ShardFile::Open(Write("narrow", documents, 2)));
  const auto wide = ValueOrThrow(ShardFile::Open(Write("wide", documents, 4)));
  EXPECT_EQ(narrow->digest(), wide->digest());
  auto other = documents;
  other[3].learn[0] ^= 1;
  EXPECT_NE(ValueOrThrow(ShardFile::Open(Write("other", other, 2)))->digest(), narrow->digest());
}

TEST_F(ShardFileTest, RecordsComeBackAsTheyWereWritten) {
  auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), false));
  auto writer = ValueOrThrow(ShardWriter::Create(*files, "records", kRecordIdBytes, kTokenizer));
  std::vector<std::vector<std::byte>> records;
  for (size_t i = 0; i < 300; ++i) {
    records.emplace_back(1 + i * 97 % 1500, static_cast<std::byte>(i));
    ThrowIfError(writer.AddRecord(records.back()));
  }
  ThrowIfError(writer.AddRecord({}));
  ThrowIfError(writer.Finish({{"rows", 301}}).status());
  const auto shard = ValueOrThrow(ShardFile::Open(folder_.Path("records")));
  ASSERT_EQ(shard->documents(), 300);
  EXPECT_EQ(ValueOrThrow(shard->Made())["rows"], 301);
  for (int64_t i = 0; i < 300; ++i) {
    std::vector<std::byte> found(static_cast<size_t>(shard->Begin(i + 1) - shard->Begin(i)));
    ThrowIfError(shard->ReadBytes(shard->Begin(i), found));
    ASSERT_EQ(found, records[static_cast<size_t>(i)]);
  }
  ThrowIfError(ReadAll(folder_.Path("records")));
  // Records are no tokens, nor these records.
  const auto tokens = ValueOrThrow(ShardFile::Open(Write("tokens", {{{1, 2}, {1, 1}}}, 2)));
  std::vector<std::byte> one(1);
  EXPECT_THAT(tokens->ReadBytes(0, one).message(), HasSubstr("tokens: holds tokens"));
}

TEST_F(ShardFileTest, AnEmptyShardIsOne) {
  const auto shard = ValueOrThrow(ShardFile::Open(Write("empty", {}, 2)));
  EXPECT_EQ(shard->documents(), 0);
  EXPECT_EQ(shard->tokens(), 0);
}

TEST_F(ShardFileTest, IdsThatDoNotFitAreRefused) {
  auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), false));
  auto writer = ValueOrThrow(ShardWriter::Create(*files, "x", 2, {}));
  const int32_t large[] = {65536}, negative[] = {-1};
  const uint8_t learn[] = {1};
  EXPECT_THAT(writer.Add(large, learn).message(), HasSubstr("token 65536 does not fit"));
  EXPECT_THAT(writer.Add(negative, learn).message(), HasSubstr("token -1 does not fit"));
}

TEST_F(ShardFileTest, EveryChangedByteIsNoticed) {
  const std::string path = Write("small", {{{1, 2, 3}, {0, 1, 1}}, {{4}, {1}}}, 2);
  const std::string good = folder_.Read("small");
  // Between header and ids are zeros, of which some will do.
  for (size_t i = 0; i<good.size(); i += i> 130 && i < 4050 ? 41 : 1) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const Status status = ReadAll(folder_.Write("bad", bad));
    ASSERT_FALSE(status.ok()) << "byte " << i;
    ASSERT_THAT(status.code(), AnyOf(StatusCode::kInvalidData, StatusCode::kDataLoss));
    ASSERT_THAT(status.message(), HasSubstr("bad")) << status.message();
  }
}

TEST_F(ShardFileTest, EveryLengthButItsOwnIsRefused) {
  Write("small", {{{1, 2, 3}, {0, 1, 1}}, {{4}, {1}}}, 4);
  const std::string good = folder_.Read("small");
  for (size_t i = 0; i < good.size(); i += i < 4000 ? 397 : 1) {
    const Status status = ReadAll(folder_.Write("cut", good.substr(0, i)));
    ASSERT_EQ(status.code(), StatusCode::kInvalidData) << i;
  }
  EXPECT_FALSE(ReadAll(folder_.Write("long", good + "x")).ok());
}

// Headers whose digest holds and whose counts lie: nothing of the file may be believed before.
TEST_F(ShardFileTest, AbsurdHeadersAreRefusedByField) {
  Write("small", {{{1, 2, 3}, {0, 1, 1}}}, 2);
  const std::string good = folder_.Read("small");
  const auto refused = [&](const char* text, const std::function<void(ShardHeader&)>& change) {
    ShardHeader header;
    std::memcpy(&header, good.data(), sizeof(header));
    change(header);
    header.header = DigestOfHeader(header);
    std::string bad = good;
    std::memcpy(bad.data(), &header, sizeof(header));
    const Status status = ReadAll(folder_.Write("absurd", bad));
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  refused("version 2", [](ShardHeader& h) { h.version = 2; });
  refused("id_bytes is 3", [](ShardHeader& h) { h.id_bytes = 3; });
  refused("id_bytes is 0", [](ShardHeader& h) { h.id_bytes = 0; });
  refused("tokens is -1", [](ShardHeader& h) { h.tokens = -1; });
  refused("tokens is 92233", [](ShardHeader& h) { h.tokens = INT64_MAX; });
  refused("its header says", [](ShardHeader& h) { h.tokens = int64_t{1} << 40; });
  refused("documents is 0", [](ShardHeader& h) { h.documents = 0; });
  refused("documents is 4", [](ShardHeader& h) { h.documents = 4; });
  refused("documents is -9", [](ShardHeader& h) { h.documents = INT64_MIN; });
  refused("has_learn is 2", [](ShardHeader& h) { h.has_learn = 2; });
  refused("made_bytes is", [](ShardHeader& h) { h.made_bytes = INT64_MAX; });
  refused("largest_id is 70000", [](ShardHeader& h) { h.largest_id = 70000; });
}

// Everything's digest holds, and the documents are none: whoever can make digests can do that.
TEST_F(ShardFileTest, BeginningsThatDoNotRiseAreRefused) {
  Write("small", {{{1, 2}, {1, 1}}, {{3, 4}, {1, 1}}}, 2);
  const std::string good = folder_.Read("small");
  for (const int64_t second : {int64_t{0}, int64_t{4}, int64_t{-1}, int64_t{1} << 60}) {
    std::string bad = good;
    ShardHeader header;
    std::memcpy(&header, bad.data(), sizeof(header));
    const ShardLayout at = ShardLayout::Of(header);
    std::memcpy(&bad[static_cast<size_t>(at.begins) + 8], &second, 8);
    const Digest128 block = Hash128(
        std::as_bytes(std::span(bad))
            .subspan(kShardHeaderBytes, static_cast<size_t>(at.digests - kShardHeaderBytes)));
    std::memcpy(&bad[static_cast<size_t>(at.digests)], &block, sizeof(block));
    header.blocks = Hash128(std::as_bytes(std::span(&block, 1)));
    header.header = DigestOfHeader(header);
    std::memcpy(bad.data(), &header, sizeof(header));
    EXPECT_THAT(ReadAll(folder_.Write("bad", bad)).message(), HasSubstr("do not rise"));
  }
}

// The format is what its page says: files of version 1 must stay readable. KEEL_WRITE_GOLDEN names
// where to write it anew.
TEST_F(ShardFileTest, TheGoldenRecordsAreReadAndWrittenByteForByte) {
  auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), false));
  auto writer = ValueOrThrow(ShardWriter::Create(*files, "golden", kRecordIdBytes, kTokenizer));
  const std::string records[] = {"first", "the second"};
  for (const std::string& record : records)
    ThrowIfError(writer.AddRecord(std::as_bytes(std::span(record))));
  ThrowIfError(writer.Finish({{"program", "keel 0.1.0"}}).status());
  const std::string written = folder_.Read("golden");
  if (const char* to = std::getenv("KEEL_WRITE_GOLDEN_RECORDS")) std::ofstream(to) << written;
  const std::string golden = std::string(std::getenv("KEEL_SOURCE_DIR")) +
                             "/tests/trainer/data/tokens/golden_records.tokens";
  std::ifstream file(golden, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  EXPECT_EQ(bytes.str(), written);
  const auto shard = ValueOrThrow(ShardFile::Open(golden));
  std::string second(10, ' ');
  ThrowIfError(shard->ReadBytes(shard->Begin(1), std::as_writable_bytes(std::span(second))));
  EXPECT_EQ(second, records[1]);
}

TEST_F(ShardFileTest, TheGoldenFileIsReadAndWrittenByteForByte) {
  const std::vector<Document> documents = {{{72, 105, 257}, {0, 0, 1}}, {{104, 257}, {1, 1}}};
  Write("golden", documents, 2);
  const std::string written = folder_.Read("golden");
  if (const char* to = std::getenv("KEEL_WRITE_GOLDEN")) std::ofstream(to) << written;
  const std::string golden =
      std::string(std::getenv("KEEL_SOURCE_DIR")) + "/tests/trainer/data/tokens/golden.tokens";
  std::ifstream file(golden, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  EXPECT_EQ(bytes.str(), written);
  const auto shard = ValueOrThrow(ShardFile::Open(golden));
  std::vector<int32_t> ids(5);
  std::vector<uint8_t> learn(5);
  ThrowIfError(shard->Read(0, ids, learn));
  EXPECT_THAT(ids, ::testing::ElementsAre(72, 105, 257, 104, 257));
  EXPECT_THAT(learn, ::testing::ElementsAre(0, 0, 1, 1, 1));
}

}  // namespace
}  // namespace keel::trainer
