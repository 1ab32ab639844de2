#include "checkpoint/hf/hf_check.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/tools/hf_import.h"
#include "common/tensors/float_convert.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// A directory that is just right for Model(), to be spoilt.
struct Directory {
  struct Tensor {
    DType dtype = DType::kF32;
    Dims shape;
    std::vector<float> values;  // stored as F32 or, cut off, as BF16
  };
  std::map<std::string, Tensor> tensors;

  Directory() {
    Put("embed", Dims{5, 3});
    Put("norm", Dims{3});
    Put("layers.0.w", Dims{3, 4});
  }
  Tensor& Put(const std::string& name, const Dims& shape, DType dtype = DType::kF32) {
    Tensor tensor{dtype, shape, std::vector<float>(static_cast<size_t>(shape.elements()))};
    for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = static_cast<float>(i) - 2;
    return tensors[name] = std::move(tensor);
  }
  void WriteTo(SimFileSystem& disk) const {
    std::vector<SafetensorsPart> parts;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      parts.push_back({name, tensor.dtype, tensor.shape, {}});
      for (const float value : tensor.values) {
        const auto* bytes = reinterpret_cast<const char*>(&value);
        const auto size = static_cast<size_t>(DTypeSize(tensor.dtype));
        data.append(bytes + (sizeof value - size), size);
      }
    }
    disk.SetContent("model.safetensors",
                    ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + data);
  }
};

std::vector<float> Read(const HfModelDir& from, const TensorInfo& wanted) {
  std::vector<float> values(static_cast<size_t>(wanted.shape.elements()));
  ShardTable table;
  ThrowIfError(
      table.Add(wanted, Box::Whole(wanted.shape),
                {reinterpret_cast<std::byte*>(values.data()), ContiguousStrides(wanted.shape)}));
  ThrowIfError(from.ReadInto(table, {}));
  return values;
}

ModelTensors Model() {
  ModelTensors model;
  model.needed = {{"embed", DType::kF32, Dims{5, 3}},
                  {"norm", DType::kF32, Dims{3}},
                  {"layers.0.w", DType::kF32, Dims{3, 4}}};
  model.may_copy = {{"head", "embed"}};
  model.may_add = {"*.inv_freq"};
  return model;
}

Status Check(const Directory& directory, const ModelTensors& model = Model()) {
  SimFileSystem disk;
  directory.WriteTo(disk);
  const HfModelDir opened = ValueOrThrow(HfModelDir::Open(disk, "."));
  const Status status = CheckTensors(opened, model);
  // What the check refuses becomes no checkpoint either.
  SimFileSystem run;
  Logger log(Quiet());
  const auto imported = ImportHuggingFace(disk, model, run, SystemClock(), log, {});
  EXPECT_EQ(imported.status().ToString(), status.ToString());
  EXPECT_EQ(run.Stat("global_step_0").ok(), status.ok());
  return status;
}

TEST(HfCheck, TheModelItselfAndWhatSaysNothingOfIt) {
  Directory directory;
  EXPECT_TRUE(Check(directory).ok());
  directory.Put("layers.0.rotary.inv_freq", Dims{2});
  directory.tensors["head"] = directory.tensors["embed"];
  for (const char* name : {"embed", "head"}) directory.tensors[name].dtype = DType::kBF16;
  const Status status = Check(directory);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(HfCheck, EveryFaultIsNamed) {
  Directory directory;
  directory.tensors.erase("norm");
  directory.Put("layers.0.w", Dims{4, 3});
  directory.Put("embed", Dims{5, 3}, DType::kI32);
  directory.Put("layers.0.bias", Dims{4});
  directory.Put("evil\x1b[31m\n2026 info", Dims{1});
  const Status status = Check(directory);
  EXPECT_EQ(status.code(), StatusCode::kInvalidData);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("missing tensors (1): norm"),
            HasSubstr("tensors of another shape (1): layers.0.w is [4, 3], expected [3, 4]"),
            HasSubstr("embed is I32, expected F32, BF16, F16 or F64"),
            HasSubstr("tensors that the model has no place for (2): evil\\x1b[31m\\x0a2026 info, "
                      "layers.0.bias"),
            HasSubstr("config.json"), HasSubstr("Correct whichever is wrong")));
  Directory quantized;
  quantized.tensors.erase("layers.0.w");
  quantized.Put("layers.0.qweight", Dims{1, 4}, DType::kI32);
  EXPECT_THAT(Check(quantized).message(),
              AllOf(HasSubstr("missing tensors (1): layers.0.w"), HasSubstr("They are quantized")));
}

// Several tensors in one, as transformers writes a layer's experts when it is told to.
TEST(HfCheck, AStackIsReadAsItsParts) {
  ModelTensors model;
  model.needed = {{"e.0.gate", DType::kF32, Dims{1, 3}},
                  {"e.0.up", DType::kF32, Dims{1, 3}},
                  {"e.1.gate", DType::kF32, Dims{1, 3}},
                  {"e.1.up", DType::kF32, Dims{1, 3}}};
  model.may_stack = {{"e.all", Dims{2, 2, 3}, {"e.0.gate", "e.0.up", "e.1.gate", "e.1.up"}}};
  Directory apart;
  apart.tensors.clear();
  for (const TensorInfo& part : model.needed) apart.Put(part.name, part.shape);
  EXPECT_TRUE(Check(apart, model).ok());

  Directory stacked;
  stacked.tensors.clear();
  stacked.Put("e.all", Dims{2, 2, 3});
  SimFileSystem disk;
  stacked.WriteTo(disk);
  const HfModelDir opened = ValueOrThrow(OpenTensors(disk, ".", model));
  std::vector<float> all(12), parts(12);
  const auto read = [](const HfModelDir& from, const std::string& name, const Dims& shape,
                       float* to) {
    ShardTable table;
    ThrowIfError(table.Add({name, DType::kF32, shape}, Box::Whole(shape),
                           {reinterpret_cast<std::byte*>(to), ContiguousStrides(shape)}));
    return from.ReadInto(table, {});
  };
  EXPECT_TRUE(read(ValueOrThrow(HfModelDir::Open(disk, ".")), "e.all", {2, 2, 3}, &all[0]).ok());
  for (size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(read(opened, model.needed[i].name, {1, 3}, &parts[3 * i]).ok());
  EXPECT_EQ(parts, all);

  stacked.Put("e.1.up", Dims{1, 3});
  SimFileSystem twice;
  stacked.WriteTo(twice);
  EXPECT_THAT(OpenTensors(twice, ".", model).status().message(),
              HasSubstr("has e.1.up both by itself and in one tensor with others"));
  stacked.tensors.clear();
  stacked.Put("e.all", Dims{2, 3, 2});
  SimFileSystem turned;
  stacked.WriteTo(turned);
  EXPECT_THAT(OpenTensors(turned, ".", model).status().message(),
              HasSubstr("e.all is [2, 3, 2], expected [2, 2, 3]"));
}

// An index may be silent about what its files hold: that is there all the same.
TEST(HfCheck, TensorsThatTheIndexDoesNotMention) {
  SimFileSystem whole, disk;
  Directory directory;
  directory.Put("layers.0.bias", Dims{4});
  directory.WriteTo(whole);
  disk.SetContent("a.safetensors", whole.Content("model.safetensors"));
  Json map = {
      {"embed", "a.safetensors"}, {"norm", "a.safetensors"}, {"layers.0.w", "a.safetensors"}};
  disk.SetContent("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const Status status = CheckTensors(ValueOrThrow(HfModelDir::Open(disk, ".")), Model());
  EXPECT_THAT(status.message(), HasSubstr("no place for (1): layers.0.bias"));
  // In two files, it is not told which one counts.
  disk.SetContent("b.safetensors", whole.Content("model.safetensors"));
  map["norm"] = "b.safetensors";
  disk.SetContent("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const Status twice = HfModelDir::Open(disk, ".").status();
  EXPECT_EQ(twice.code(), StatusCode::kInvalidData);
  EXPECT_THAT(twice.message(),
              AllOf(HasSubstr("b.safetensors: holds embed"), HasSubstr("so does a.safetensors")));
}

TEST(HfCheck, OfManyFaultsTheFirstAreNamed) {
  ModelTensors model = Model();
  for (int i = 0; i < 10'000; ++i)
    model.needed.push_back({fmt::format("more.{}", i), DType::kF32, Dims{2}});
  const Status status = Check(Directory(), model);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("missing tensors (10000): more.0, more.1"), HasSubstr(", ...")));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(HfCheck, ATiedHeadThatIsNoCopy) {
  Directory directory;
  directory.tensors["head"] = directory.tensors["embed"];
  directory.tensors["head"].values.back() += 1;
  EXPECT_THAT(Check(directory).message(),
              HasSubstr("head differs from embed, to which config.json ties it"));
  directory.Put("head", Dims{3, 5});
  EXPECT_THAT(Check(directory).message(), HasSubstr("head differs from embed"));
  directory.Put("head", Dims{5, 3}, DType::kBF16);
  EXPECT_THAT(Check(directory).message(), HasSubstr("head differs from embed"));
}

// Of two tied weights a file may have either, as safetensors' save_model leaves it.
TEST(HfCheck, ATiedHeadAloneIsTheEmbedding) {
  Directory directory;
  directory.tensors["head"] = directory.tensors["embed"];
  directory.tensors.erase("embed");
  SimFileSystem disk;
  directory.WriteTo(disk);
  const HfModelDir opened = ValueOrThrow(OpenTensors(disk, ".", Model()));
  EXPECT_EQ(opened.source().Find("head"), -1);
  ASSERT_GE(opened.source().Find("embed"), 0);
  EXPECT_EQ(Read(opened, {"embed", DType::kF32, Dims{5, 3}}), directory.tensors["head"].values);
  // A fault is named as the file has it.
  directory.Put("head", Dims{3, 5});
  SimFileSystem turned;
  directory.WriteTo(turned);
  EXPECT_THAT(OpenTensors(turned, ".", Model()).status().message(),
              HasSubstr("head is [3, 5], expected [5, 3]"));
  // One that is tied to nothing is no embedding.
  ModelTensors untied = Model();
  untied.may_copy.clear();
  EXPECT_THAT(OpenTensors(disk, ".", untied).status().message(),
              HasSubstr("missing tensors (1): embed"));
}

// What AutoModel's save_pretrained writes.
TEST(HfCheck, ABaseModelSavedAloneIsRead) {
  ModelTensors model;
  model.needed = {{"model.embed", DType::kF32, Dims{5, 3}},
                  {"model.norm", DType::kF32, Dims{3}},
                  {"model.layers.0.w", DType::kF32, Dims{3, 4}}};
  model.may_copy = {{"head", "model.embed"}};
  model.may_add = {"*.inv_freq"};
  model.may_stack = {{"model.layers.0.all", Dims{1, 3, 4}, {"model.layers.0.w"}}};
  Directory directory;
  directory.Put("layers.0.rotary.inv_freq", Dims{2});
  const auto open = [&] {
    SimFileSystem disk;
    directory.WriteTo(disk);
    return OpenTensors(disk, ".", model).status();
  };
  SimFileSystem disk;
  directory.WriteTo(disk);
  const HfModelDir opened = ValueOrThrow(OpenTensors(disk, ".", model));
  for (const TensorInfo& wanted : model.needed)
    EXPECT_EQ(Read(opened, wanted), directory.tensors[wanted.name.substr(6)].values) << wanted.name;
  // With a tied head's copy; with a stack; and where one is of another shape, or strange.
  directory.tensors["head"] = directory.tensors["embed"];
  EXPECT_TRUE(open().ok()) << open().ToString();
  directory.tensors.erase("layers.0.w");
  directory.Put("layers.0.all", Dims{1, 3, 4});
  EXPECT_TRUE(open().ok()) << open().ToString();
  directory.Put("norm", Dims{4});
  directory.Put("layers.0.bias", Dims{4});
  EXPECT_THAT(open().message(), AllOf(HasSubstr(": norm is [4], expected [3]"),
                                      HasSubstr("no place for (1): layers.0.bias")));
  // Both ways at once, it is not told which one counts.
  directory.Put("model.norm", Dims{3});
  EXPECT_THAT(open().message(), HasSubstr("no place for (2): layers.0.bias, norm"));
}

TEST(HfCheck, WhatMayBeMissing) {
  ModelTensors model = Model();
  model.needed.push_back({"score", DType::kF32, Dims{1, 3}});
  EXPECT_FALSE(Check(Directory(), model).ok());
  model.may_lack = {"score"};
  EXPECT_TRUE(Check(Directory(), model).ok());
}

TEST(HfCheck, ValuesThatAreNotFinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
      Directory directory;
      auto& tensor = directory.Put("layers.0.w", Dims{3, 4}, dtype);
      tensor.values[7] = value;
      SimFileSystem disk, run;
      directory.WriteTo(disk);
      Logger log(Quiet());
      const Status status = ImportHuggingFace(disk, Model(), run, SystemClock(), log, {}).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidData);
      EXPECT_THAT(status.message(), HasSubstr("layers.0.w has values that are not finite"));
      EXPECT_FALSE(run.Stat("global_step_0").ok());
    }
  }
}

// Against the definition, for every bit pattern of two bytes, and around the border of four.
TEST(HfCheck, AllFiniteIsExact) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    std::byte data[6] = {};
    std::memcpy(data + 3, &half, 2);
    const float wide = std::bit_cast<float>(bits << 16);
    ASSERT_EQ(AllFinite(data + 3, 1, DType::kBF16), std::isfinite(wide)) << bits;
    ASSERT_EQ(AllFinite(data + 3, 1, DType::kF16), (bits >> 10 & 31) != 31) << bits;
  }
  for (const float value : {0.0f, -1.5f, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(), INFINITY, -INFINITY, NAN}) {
    std::vector<float> values(33, 1.0f);
    for (size_t at = 0; at < values.size(); ++at) {
      values[at] = value;
      ASSERT_EQ(AllFinite(reinterpret_cast<const std::byte*>(values.data()), 33, DType::kF32),
                std::isfinite(value));
      values[at] = 1.0f;
    }
  }
  for (const auto& [value, finite] : {std::pair(3.4028235e38, true),
                                      {3.41e38, false},
                                      {1e300, false},
                                      {1e-300, true},
                                      {double{NAN}, false}})
    EXPECT_EQ(AllFinite(reinterpret_cast<const std::byte*>(&value), 1, DType::kF64), finite);
  const int64_t integer = -1;
  EXPECT_TRUE(AllFinite(reinterpret_cast<const std::byte*>(&integer), 1, DType::kI64));
}

}  // namespace
}  // namespace keel::checkpoint
