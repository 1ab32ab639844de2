// What a GGUF file's header may say, and what it may not.

#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_tokenizer.h"
#include "tests/model/gguf/gguf_builder.h"

namespace keel::model {
namespace {

using testing::Bytes;
using testing::BytesFile;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::LengthAnd;
using testing::TinyGguf;

Result<GgufFile> ReadFrom(const std::string& bytes) { return ReadGguf(BytesFile(bytes), "a.gguf"); }

std::string FileError(const std::string& bytes) {
  const auto read = ReadFrom(bytes);
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidData);
  EXPECT_THAT(read.status().message(), ::testing::StartsWith("a.gguf: "));
  return read.status().message();
}

TEST(GgufFileTest, ReadsKeysAndTensors) {
  GgufBuilder gguf = TinyGguf();
  gguf.Numbers<uint64_t>("many", GgufType::kUint64, {1, uint64_t{1} << 63});
  gguf.Tensor("output_norm.weight", {8}, std::vector<float>(8, 1.0f));
  for (const uint32_t version : {2u, 3u}) {
    gguf.version = version;
    const std::string bytes = gguf.Build();
    const GgufFile file = ValueOrThrow(ReadFrom(bytes));
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(ValueOrThrow(file.metadata.Int("llama.block_count")), 1);
    EXPECT_EQ(ValueOrThrow(file.metadata.String("tokenizer.ggml.model")), "gpt2");
    EXPECT_EQ(ValueOrThrow(file.metadata.Strings("tokenizer.ggml.tokens"))->at(2), "ab");
    EXPECT_EQ(file.metadata.Find("many")->Integer(0), 1);
    EXPECT_EQ(file.metadata.Find("many")->Integer(1), std::nullopt);
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(file.tensors[0].shape, (Dims{4, 8}));
    EXPECT_EQ(file.tensors[1].offset + file.tensors[1].bytes, std::ssize(bytes));
  }
}

TEST(GgufFileTest, EveryTruncatedFileIsRefused) {
  const std::string whole = TinyGguf().Build();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(ReadFrom(whole.substr(0, length)).ok()) << length;
  }
  EXPECT_TRUE(ReadFrom(whole).ok());
}

TEST(GgufFileTest, WrongBeginnings) {
  EXPECT_THAT(FileError("PK\x03\x04 and more"), HasSubstr("is no GGUF file"));
  GgufBuilder gguf = TinyGguf();
  gguf.version = 1;
  EXPECT_THAT(FileError(gguf.Build()), HasSubstr("GGUF version 1, expected 2 or 3"));
  gguf.version = 3u << 24;
  EXPECT_THAT(FileError(gguf.Build()), HasSubstr("big-endian"));
  const std::string start = "GGUF" + Bytes(uint32_t{3});
  EXPECT_THAT(FileError(start + Bytes(~uint64_t{0}) + Bytes(uint64_t{0})),
              HasSubstr("the number of tensors: 18446744073709551615, at most"));
  EXPECT_THAT(FileError(start + Bytes(uint64_t{0}) + Bytes(~uint64_t{0})),
              HasSubstr("the number of keys: 18446744073709551615, at most"));
}

TEST(GgufFileTest, WrongKeys) {
  GgufBuilder twice = TinyGguf();
  twice.Int("llama.block_count", 2);
  EXPECT_THAT(FileError(twice.Build()), HasSubstr("key llama.block_count: is there twice"));
  GgufBuilder type;
  type.Key("k", static_cast<GgufType>(13), "");
  EXPECT_THAT(FileError(type.Build()), HasSubstr("key k: its type: 13 is no type of GGUF"));
  GgufBuilder nested;
  nested.Array("k", GgufType::kArray, 1, "");
  EXPECT_THAT(FileError(nested.Build()), HasSubstr("key k: an array of arrays"));
  GgufBuilder many;
  many.Array("k", GgufType::kUint8, uint64_t{1} << 60, "");
  EXPECT_THAT(FileError(many.Build()), HasSubstr("key k: its elements: 1152921504606846976"));
  GgufBuilder length;
  length.Key("k", GgufType::kString, Bytes(uint64_t{1} << 40));
  EXPECT_THAT(FileError(length.Build()), HasSubstr("the length of key k"));
  GgufBuilder alignment = TinyGguf();
  alignment.Int("general.alignment", 0);
  EXPECT_THAT(FileError(alignment.Build()), HasSubstr("key general.alignment: 0 is no alignment"));
}

TEST(GgufFileTest, WrongTensors) {
  const auto with = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    GgufBuilder gguf = TinyGguf();
    gguf.Entry("odd.weight", dims, type, offset);
    gguf.data.resize(1024);
    return FileError(gguf.Build());
  };
  EXPECT_THAT(with({}, 0, 128), HasSubstr("tensor odd.weight: 0 dims"));
  EXPECT_THAT(with({1, 1, 1, 1, 1, 1, 1}, 0, 128), HasSubstr("7 dims"));
  EXPECT_THAT(with({0}, 0, 128), HasSubstr("impossible shape"));
  EXPECT_THAT(with({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 128), HasSubstr("impossible shape"));
  EXPECT_THAT(with({uint64_t{1} << 61}, 0, 128), HasSubstr("impossible shape"));
  EXPECT_THAT(with({4}, 16, 128), HasSubstr("is stored as IQ2_XXS, which Keel does not read"));
  EXPECT_THAT(with({4}, 99, 128), HasSubstr("is stored as type 99"));
  EXPECT_THAT(with({48}, 8, 128), HasSubstr("rows of 48 values, and Q8_0 stores blocks of 32"));
  EXPECT_THAT(with({4}, 0, 130), HasSubstr("no multiple of the alignment 32"));
  EXPECT_THAT(with({4}, 0, 1 << 20), HasSubstr("outside the file"));
  EXPECT_THAT(with({4}, 0, 64), HasSubstr("tensors token_embd.weight and odd.weight overlap"));
  GgufBuilder twice = TinyGguf();
  twice.Tensor("token_embd.weight", {8, 4}, std::vector<float>(32));
  EXPECT_THAT(FileError(twice.Build()), HasSubstr("tensor token_embd.weight: is there twice"));
}

}  // namespace
}  // namespace keel::model
