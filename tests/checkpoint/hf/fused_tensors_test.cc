#include "checkpoint/hf/fused_tensors.h"

#include <gmock/gmock.h>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_export_directory.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

constexpr const char* kPhi =
    R"({"model_type": "phi3", "num_attention_heads": 4, "num_key_value_heads": 2})";
constexpr const char* kAttention = "model.layers.0.self_attn.";
constexpr const char* kMlp = "model.layers.0.mlp.";

// One block: four heads and two key/value heads of three dims, a feed-forward of seven.
std::vector<TensorInfo> BlockTensors() {
  const std::string attention = kAttention;
  const std::string mlp = kMlp;
  return {{mlp + "gate_proj.weight", DType::kBF16, Dims{7, 6}},
          {mlp + "up_proj.weight", DType::kBF16, Dims{7, 6}},
          {attention + "k_proj.weight", DType::kBF16, Dims{6, 6}},
          {attention + "o_proj.weight", DType::kBF16, Dims{6, 12}},
          {attention + "q_proj.weight", DType::kBF16, Dims{12, 6}},
          {attention + "v_proj.weight", DType::kBF16, Dims{6, 6}}};
}

ModelTensors BlockModel() {
  ModelTensors model;
  model.needed = BlockTensors();
  return model;
}

// A checkpoint of the block, on as many ranks as the cut says, with this config.json.
StepReader SavedBlock(SimFileSystem& disk, const GlobalState& state, const std::string& config,
                      bool whole_model = false, const char* role = "actor") {
  Cut cut({1}, 1);
  cut.model[0] = RankPart();
  cut.optimizer[0] = RankPart();
  for (const TensorInfo& tensor : BlockTensors())
    cut.model[0].AddBox(tensor, Box::Whole(tensor.shape));
  cut.model[0].Fill(state);
  ThrowIfError(SaveOn(disk, cut, 1, SmallOptions(), [&](SaveRequest& r) {
    r.documents[1].content = config;
    r.roles[0].name = role;
    r.contents.optimizer = false;
    r.contents.hf_model = whole_model;
    r.contents.model = !whole_model;
  }));
  return ValueOrThrow(StepReader::Open(disk, "global_step_1"));
}

std::vector<std::string> NamesInFile(const SimFileSystem& disk, const std::string& file) {
  std::vector<std::string> names;
  for (const SafetensorsTensor& tensor : ValueOrThrow(ReadSafetensorsHeader(disk, file)).tensors)
    names.push_back(tensor.name + " " + tensor.shape.ToString());
  return names;
}

TEST(FusedTensors, FilesHaveThemJoinedAndAreReadInTheirParts) {
  const GlobalState state = MakeState(BlockTensors(), 5);
  SimFileSystem disk, out;
  const StepReader reader = SavedBlock(disk, state, kPhi);
  Logger log(Quiet());
  ThrowIfError(ExportHuggingFace(reader, "actor", out, "m", {}, log));
  EXPECT_THAT(NamesInFile(out, "m/model.safetensors"),
              ElementsAre("model.layers.0.mlp.gate_up_proj.weight [14, 6]",
                          "model.layers.0.self_attn.qkv_proj.weight [24, 6]",
                          "model.layers.0.self_attn.o_proj.weight [6, 12]"));
  // The values follow each other as q, k, v, whatever the order of the checkpoint.
  const std::string content = out.Content("m/model.safetensors");
  const auto bytes = [&](const std::string& name) {
    const auto& values = state.at(kAttention + name + ".weight").bytes;
    return std::string(reinterpret_cast<const char*>(values.data()), values.size());
  };
  EXPECT_NE(content.find(bytes("q_proj") + bytes("k_proj") + bytes("v_proj")), std::string::npos);

  const HfModelDir opened = ValueOrThrow(HfModelDir::Open(out, "m"));
  EXPECT_EQ(CheckTensors(opened, BlockModel()).ToString(), "ok");
  RankPart whole, some;
  for (const TensorInfo& tensor : BlockTensors()) whole.AddBox(tensor, Box::Whole(tensor.shape));
  ThrowIfError(opened.ReadInto(whole.table, {}));
  EXPECT_EQ(whole.FirstDifference(state), "");
  // A rank's rows of a part.
  for (const TensorInfo& tensor : BlockTensors()) {
    Box box = Box::Whole(tensor.shape);
    box.offset[0] = box.size[0] / 2;
    box.size[0] -= box.offset[0];
    some.AddBox(tensor, box);
  }
  ThrowIfError(opened.ReadInto(some.table, {}));
  EXPECT_EQ(some.FirstDifference(state), "");
  // Other files have other names.
  SimFileSystem plain;
  SimFileSystem llama;
  const StepReader other = SavedBlock(llama, state, R"({"model_type": "llama"})");
  ThrowIfError(ExportHuggingFace(other, "actor", plain, "m", {}, log));
  EXPECT_EQ(NamesInFile(plain, "m/model.safetensors").size(), BlockTensors().size());
}

// A critic, which has no config.json of its own, is the actor's model.
TEST(FusedTensors, ACriticsFilesHaveTheActorsNames) {
  SimFileSystem disk, out;
  const StepReader reader = SavedBlock(disk, MakeState(BlockTensors(), 8), kPhi, false, "critic");
  Logger log(Quiet());
  ThrowIfError(ExportHuggingFace(reader, "critic", out, "m", {}, log));
  EXPECT_THAT(NamesInFile(out, "m/model.safetensors"),
              ElementsAre("model.layers.0.mlp.gate_up_proj.weight [14, 6]",
                          "model.layers.0.self_attn.qkv_proj.weight [24, 6]",
                          "model.layers.0.self_attn.o_proj.weight [6, 12]"));
  EXPECT_FALSE(out.Stat("m/config.json").ok());
}

TEST(FusedTensors, ACheckpointOfTheWholeModelAloneIsLoaded) {
  const GlobalState state = MakeState(BlockTensors(), 6);
  SimFileSystem disk;
  SavedBlock(disk, state, kPhi, true);
  EXPECT_EQ(NamesInFile(disk, "global_step_1/actor/huggingface/model.safetensors").size(), 3u);
  Cut cut({1}, 1);
  cut.model[0] = RankPart();
  cut.optimizer[0] = RankPart();
  for (const TensorInfo& tensor : BlockTensors())
    cut.model[0].AddBox(tensor, Box::Whole(tensor.shape));
  cut.Clear(0);
  const auto loaded = LoadFrom(disk, cut, [&](LoadRequest& r) {
    r.contents.hf_model = true;
    r.contents.model = false;
    r.contents.optimizer = false;
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(cut.model[0].FirstDifference(state), "");
}

// A directory with these tensors, of zeros.
Status CheckFile(const std::vector<TensorInfo>& tensors, const std::string& config) {
  SimFileSystem disk;
  std::vector<SafetensorsPart> parts;
  std::string values;
  for (const TensorInfo& tensor : tensors) {
    parts.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    values.append(static_cast<size_t>(tensor.shape.elements() * DTypeSize(tensor.dtype)), '\0');
  }
  disk.SetContent("model.safetensors", ValueOrThrow(BuildSafetensorsHeader(parts, {}, 8)) + values);
  disk.SetContent("config.json", config);
  const Result<HfModelDir> opened = HfModelDir::Open(disk, ".");
  return opened.ok() ? CheckTensors(*opened, BlockModel()) : opened.status();
}

TEST(FusedTensors, WhatDoesNotDivideIsNamed) {
  const std::string attention = kAttention;
  const std::string mlp = kMlp;
  const TensorInfo output{attention + "o_proj.weight", DType::kBF16, Dims{6, 12}};
  const TensorInfo gate_up{mlp + "gate_up_proj.weight", DType::kBF16, Dims{14, 6}};
  const auto with_rows = [&](const Dims& shape) {
    return std::vector<TensorInfo>{
        output, gate_up, {attention + "qkv_proj.weight", DType::kBF16, shape}};
  };
  EXPECT_EQ(CheckFile(with_rows({24, 6}), kPhi).ToString(), "ok");
  const Status odd = CheckFile(with_rows({25, 6}), kPhi);
  EXPECT_EQ(odd.code(), StatusCode::kInvalidData);
  EXPECT_THAT(odd.message(), AllOf(HasSubstr("model.safetensors"),
                                   HasSubstr("model.layers.0.self_attn.qkv_proj.weight is [25, 6]"),
                                   HasSubstr("4 : 2 : 2"), HasSubstr("a multiple of 8 rows")));
  EXPECT_THAT(CheckFile(with_rows({24}), kPhi).message(), HasSubstr("expected a matrix"));
  EXPECT_THAT(CheckFile(with_rows({0, 6}), kPhi).message(), HasSubstr("expected a matrix"));
  // Rows that divide, of another model.
  EXPECT_THAT(CheckFile(with_rows({32, 6}), kPhi).message(),
              AllOf(HasSubstr("q_proj.weight (rows of model.layers.0.self_attn.qkv_proj.weight) is "
                              "[16, 6], expected [12, 6]")));
  // A part and the whole.
  std::vector<TensorInfo> both = with_rows({24, 6});
  both.push_back({attention + "q_proj.weight", DType::kBF16, Dims{12, 6}});
  EXPECT_THAT(CheckFile(both, kPhi).message(), HasSubstr("self_attn.q_proj.weight"));
  EXPECT_THAT(CheckFile({output, gate_up}, kPhi).message(),
              HasSubstr("k_proj.weight (rows of model.layers.0.self_attn.qkv_proj.weight)"));
  // Without the numbers nothing can be told apart.
  for (const char* config :
       {R"({"model_type": "phi3"})", R"({"model_type": "phi3", "num_attention_heads": 0})",
        R"({"model_type": "phi3", "num_attention_heads": "4"})",
        R"({"model_type": "phi3", "num_attention_heads": 1e18})"}) {
    EXPECT_THAT(CheckFile(with_rows({24, 6}), config).message(),
                HasSubstr("config.json: num_attention_heads: expected a positive number"));
  }
  // As many key/value heads as heads where nothing else is said.
  EXPECT_THAT(CheckFile(with_rows({24, 6}), R"({"model_type": "phi3", "num_attention_heads": 4})")
                  .message(),
              HasSubstr("q_proj.weight (rows of model.layers.0.self_attn.qkv_proj.weight) is "
                        "[8, 6], expected [12, 6]"));
}

TEST(FusedTensors, PartsThatDoNotFitAreNotJoined) {
  const FusedTensors fused = ValueOrThrow(FusedTensors::Of(kPhi, "config.json"));
  std::vector<TensorInfo> tensors = BlockTensors();
  EXPECT_EQ(ValueOrThrow(fused.Join(tensors)).size(), 3u);
  tensors[2].dtype = DType::kF32;
  EXPECT_THAT(fused.Join(tensors).status().message(),
              AllOf(HasSubstr("self_attn.k_proj.weight"), HasSubstr("qkv_proj.weight")));
  tensors.erase(tensors.begin() + 2);
  EXPECT_THAT(fused.Join(tensors).status().message(),
              AllOf(HasSubstr("self_attn.k_proj.weight"), HasSubstr("is missing")));
}

// Granite 4 has gate and up in one tensor, and down under another name.
TEST(FusedTensors, OneTensorUnderAnotherName) {
  const FusedTensors fused =
      ValueOrThrow(FusedTensors::Of(R"({"model_type": "granitemoehybrid"})", "config.json"));
  const std::string mlp = kMlp, shared = "model.layers.0.shared_mlp.";
  EXPECT_EQ(fused.FusedNameOf(mlp + "down_proj.weight"), "");
  EXPECT_EQ(fused.names().FileName(mlp + "down_proj.weight"), shared + "output_linear.weight");
  const std::vector<TensorInfo> tensors = {{mlp + "down_proj.weight", DType::kBF16, Dims{6, 7}},
                                           {mlp + "gate_proj.weight", DType::kBF16, Dims{7, 6}},
                                           {mlp + "up_proj.weight", DType::kBF16, Dims{7, 6}}};
  const auto joined = ValueOrThrow(fused.Join(tensors));
  ASSERT_EQ(joined.size(), 2U);
  EXPECT_EQ(joined[0].tensor.name, shared + "output_linear.weight");
  EXPECT_EQ(joined[0].tensor.shape, (Dims{6, 7}));
  EXPECT_EQ(joined[1].tensor.name, shared + "input_linear.weight");
  EXPECT_EQ(joined[1].tensor.shape, (Dims{14, 6}));
  SafetensorsTensor down;
  down.name = shared + "output_linear.weight";
  down.dtype = DType::kBF16;
  down.shape = Dims{6, 7};
  down.begin = 10;
  down.end = 94;
  const auto parts = ValueOrThrow(fused.Split(down, "a file"));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].name, mlp + "down_proj.weight");
  EXPECT_EQ(parts[0].begin, 10);
  EXPECT_EQ(parts[0].end, 94);
}

TEST(FusedTensors, OfOtherFamiliesNone) {
  for (const char* config : {"", "[]", "{}", R"({"model_type": 3})", R"({"model_type": "llama"})"})
    EXPECT_TRUE(ValueOrThrow(FusedTensors::Of(config, "config.json")).empty()) << config;
  EXPECT_FALSE(FusedTensors::Of("{", "config.json").ok());
}

}  // namespace
}  // namespace keel::checkpoint
