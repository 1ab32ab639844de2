#include "checkpoint/format/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "tests/checkpoint/support/sim_file_system.h"

namespace keel::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::SimFileSystem;

// Length prefix, JSON, and `data` bytes after it.
std::string FileOf(const std::string& json, size_t data) {
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + std::string(data, 'x');
}

Result<SafetensorsHeader> Read(const std::string& content) {
  SimFileSystem disk;
  disk.SetContent("t.safetensors", content);
  return ReadSafetensorsHeader(disk, "t.safetensors");
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const auto header = Read(FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
      R"("empty":{"dtype":"I64","shape":[0,4],"data_offsets":[2,2]}}   )",
      26));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");  // by offset
  EXPECT_EQ(header->tensors[1].name, "empty");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].shape, (Dims{2, 3}));
  EXPECT_EQ(header->tensors[2].begin - header->data_start, 2);
  EXPECT_EQ(header->tensors[2].bytes(), 24);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_TRUE(Read(FileOf("{}", 0)).ok());
}

struct Malformed {
  const char* what;
  std::string content;
  const char* message;
};

std::vector<Malformed> MalformedFiles() {
  const auto one = [](const std::string& entry, size_t data) {
    return FileOf("{\"w\":" + entry + "}", data);
  };
  const auto length = [](uint64_t value, std::string rest) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &value, 8);
    return file + rest;
  };
  std::string deep = "{\"w\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  return {
      {"empty file", "", "is empty: download"},
      {"seven bytes", "1234567", "too few"},
      {"no header", length(0, ""), "does not start"},
      {"length past the end", length(100, "{}"), "header length"},
      {"length 2^64-1", length(~uint64_t{0}, "{}"), "header length"},
      {"length 2^63", length(uint64_t{1} << 63, "{}"), "header length"},
      {"length one too many", length(3, "{}"), "header length"},
      {"leading space", FileOf(" {}", 0), "does not start"},
      {"a list", FileOf("[]", 0), "does not start"},
      {"cut JSON", FileOf("{\"w\":", 0), ""},
      {"text after the object", FileOf("{} x", 0), ""},
      {"deep nesting", FileOf(deep, 0), ""},
      {"not UTF-8",
       FileOf("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4), ""},
      {"duplicate tensor",
       FileOf(
           R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           4),
       ""},
      {"duplicate key", one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4),
       ""},
      {"not an object", one("4", 4), "expected exactly the keys"},
      {"extra key", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})", 4),
       "expected exactly the keys"},
      {"missing key", one(R"({"dtype":"F32","shape":[1]})", 4), "expected exactly the keys"},
      {"unknown dtype", one(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})", 4), "F33"},
      {"dtype is a number", one(R"({"dtype":1,"shape":[1],"data_offsets":[0,4]})", 4), "dtype"},
      {"shape is a number", one(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", 4), "shape"},
      {"negative size", one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), "size -1"},
      {"fractional size", one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", 4), "size"},
      {"huge size",
       one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", 4), "size"},
      {"product overflows",
       one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})", 4),
       "too many"},
      {"product overflows to the right bytes",
       one(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})", 4), ""},
      {"too many dims", one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]})", 4),
       "dims"},
      {"offsets reversed", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4),
       "data_offsets"},
      {"offsets past the end", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4),
       "data_offsets"},
      {"negative offset", one(R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4),
       "data_offsets"},
      {"three offsets", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 8),
       "data_offsets"},
      {"shape and offsets differ", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
       "needs"},
      {"data after the tensors", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5),
       "end at byte"},
      {"hole before", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8), "hole"},
      {"overlap",
       FileOf(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "overlap"},
      {"metadata is a list", FileOf(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"metadata of numbers", FileOf(R"({"__metadata__":{"a":1}})", 0), "not a string"},
  };
}

TEST(Safetensors, RefusesWhatItForbidsAndSaysWhat) {
  for (const Malformed& one : MalformedFiles()) {
    const auto header = Read(one.content);
    ASSERT_FALSE(header.ok()) << one.what;
    EXPECT_EQ(header.status().code(), StatusCode::kInvalidData) << one.what;
    EXPECT_THAT(header.status().message(), HasSubstr("t.safetensors")) << one.what;
    EXPECT_THAT(header.status().message(), HasSubstr(one.message)) << one.what;
  }
}

TEST(Safetensors, CutAnywhereIsRefused) {
  const std::vector<SafetensorsPart> parts = {{"a", DType::kF32, Dims{3, 5}, {}},
                                              {"b", DType::kBF16, Dims{7}, {}}};
  const std::string whole =
      ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + std::string(74, 'x');
  ASSERT_TRUE(Read(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(Read(whole.substr(0, size)).ok()) << size;
  EXPECT_THAT(Read(whole.substr(0, whole.size() - 1)).status().message(),
              HasSubstr("was cut short is to be copied or downloaded again"));
  EXPECT_FALSE(Read(whole + "x").ok());
}

TEST(Safetensors, RandomDamageNeverGivesTensorsOutsideTheFile) {
  const std::vector<SafetensorsPart> parts = {{"a", DType::kF32, Dims{3, 5}, {}},
                                              {"b", DType::kBF16, Dims{7}, {}}};
  const std::string whole =
      ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + std::string(74, 'x');
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = whole;
    for (uint64_t i = 0; i <= random() % 3; ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto header = Read(damaged);
    if (!header.ok()) continue;
    int64_t at = header->data_start;
    for (const SafetensorsTensor& tensor : header->tensors) {
      EXPECT_EQ(tensor.begin, at);
      EXPECT_EQ(tensor.bytes(), tensor.shape.elements() * DTypeSize(tensor.dtype));
      at = tensor.end;
    }
    EXPECT_EQ(at, static_cast<int64_t>(damaged.size()));
  }
}

TEST(Safetensors, ShardedHeaderIsReadableAndAligned) {
  const std::vector<SafetensorsPart> parts = {{"layer \"0\"", DType::kBF16, Dims{3, 5}, Dims{4, 0}},
                                              {"scale", DType::kF32, Dims{}, Dims{}}};
  const std::string header = ValueOrThrow(BuildShardedSafetensorsHeader(parts));
  EXPECT_EQ(header.size() % 4096, 0u);
  const auto parsed = Read(header + std::string(34, 'x'));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->data_start, static_cast<int64_t>(header.size()));
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  EXPECT_EQ(parsed->metadata.at("DCP_VERSION"), "1.0");
  EXPECT_EQ(parsed->metadata.at("DCP_SHARDING_INFO"),
            R"({"layer \"0\"":{"saved_offsets":[4,0]},"scale":{"saved_offsets":[]}})");
}

TEST(Safetensors, OneEntryPerName) {
  const std::vector<SafetensorsPart> parts = {{"a", DType::kF32, Dims{1}, {}},
                                              {"a", DType::kF32, Dims{1}, {}}};
  EXPECT_EQ(BuildSafetensorsHeader(parts, {}, 8).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace keel::checkpoint
