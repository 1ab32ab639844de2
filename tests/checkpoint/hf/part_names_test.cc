#include "checkpoint/hf/part_names.h"

#include <gmock/gmock.h>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

constexpr const char* kWhole =
    R"({"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}})";

// A directory of these tensors, each of which has two values, its number and half of it.
void Write(SimFileSystem& disk, const std::vector<std::string>& names,
           const std::string& config = kWhole) {
  std::vector<SafetensorsPart> parts;
  std::string data;
  float number = 0;
  for (const std::string& name : names) {
    parts.push_back({name, DType::kF32, Dims{2}, {}});
    const float values[] = {number, number / 2};
    data.append(reinterpret_cast<const char*>(values), sizeof values);
    ++number;
  }
  disk.SetContent("model.safetensors",
                  ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + data);
  disk.SetContent("config.json", config);
}

ModelTensors TextModel(bool tied = false) {
  ModelTensors model;
  model.needed = {{"model.embed_tokens.weight", DType::kF32, Dims{2}},
                  {"model.layers.0.w", DType::kF32, Dims{2}}};
  if (tied) {
    model.may_copy = {{"lm_head.weight", "model.embed_tokens.weight"}};
  } else {
    model.needed.push_back({"lm_head.weight", DType::kF32, Dims{2}});
  }
  return model;
}

const std::vector<std::string> kOlder = {"language_model.model.embed_tokens.weight",
                                         "language_model.model.layers.0.w",
                                         "language_model.lm_head.weight",
                                         "vision_tower.vision_model.head.bias",
                                         "vision_tower.vision_model.head.weight",
                                         "multi_modal_projector.linear_1.weight",
                                         "image_newline"};
const std::vector<std::string> kNewer = {"model.language_model.embed_tokens.weight",
                                         "model.language_model.layers.0.w",
                                         "lm_head.weight",
                                         "model.vision_tower.head.bias",
                                         "model.vision_tower.head.weight",
                                         "model.multi_modal_projector.linear_1.weight",
                                         "model.image_newline"};

TEST(PartNames, TheTextPartIsReadUnderItsOwnNames) {
  for (const auto& names : {kOlder, kNewer}) {
    SimFileSystem disk;
    Write(disk, names);
    const HfModelDir opened = ValueOrThrow(OpenTensors(disk, ".", TextModel()));
    EXPECT_EQ(opened.source().tensors().size(), 3u);
    EXPECT_THAT(opened.left_aside(),
                ElementsAre(Pair("image_newline", 1), Pair("multi_modal_projector", 1),
                            Pair("vision_tower", 2)));
    EXPECT_TRUE(opened.strangers().empty());
    // The values are those of the names in the files.
    std::vector<float> head(2);
    ShardTable table;
    ThrowIfError(table.Add({"lm_head.weight", DType::kF32, Dims{2}}, Box::Whole(Dims{2}),
                           {reinterpret_cast<std::byte*>(head.data()), Dims{1}}));
    ThrowIfError(opened.ReadInto(table, {}));
    EXPECT_THAT(head, ElementsAre(2, 1));
    EXPECT_EQ(opened.NameInFiles("model.layers.0.w"), names[1]);
    EXPECT_EQ(opened.NameInFiles("lm_head.weight"), names[2]);
  }
}

// Of Qwen2.5-VL files have the text model's own names, with and without a text_config.
TEST(PartNames, OfQwensTheTextPartHasItsOwnNamesOrNewerOnes) {
  const std::vector<std::string> own = {"model.embed_tokens.weight", "model.layers.0.w",
                                        "lm_head.weight", "visual.blocks.0.w"};
  const std::vector<std::string> newer = {"model.language_model.embed_tokens.weight",
                                          "model.language_model.layers.0.w", "lm_head.weight",
                                          "model.visual.blocks.0.w"};
  const std::string flat = R"({"model_type": "qwen2_5_vl", "vision_config": {}})";
  const std::string nested =
      R"({"model_type": "qwen2_5_vl", "text_config": {}, "vision_config": {}})";
  for (const auto& names : {own, newer}) {
    for (const std::string& config : {flat, nested}) {
      SimFileSystem disk;
      Write(disk, names, config);
      const HfModelDir opened = ValueOrThrow(OpenTensors(disk, ".", TextModel()));
      EXPECT_THAT(opened.left_aside(), ElementsAre(Pair("visual", 1)));
      EXPECT_EQ(opened.NameInFiles("model.layers.0.w"), names[1]);
    }
  }
  // Qwen3-VL has the newer ones alone, and neither has the other wholes' parts.
  SimFileSystem disk;
  Write(disk, newer, R"({"model_type": "qwen3_vl", "text_config": {}})");
  EXPECT_TRUE(OpenTensors(disk, ".", TextModel()).ok());
  Write(disk, own, R"({"model_type": "qwen3_vl", "text_config": {}})");
  EXPECT_FALSE(OpenTensors(disk, ".", TextModel()).ok());
  std::vector<std::string> others = own;
  others.emplace_back("vision_tower.w");
  Write(disk, others, flat);
  EXPECT_THAT(OpenTensors(disk, ".", TextModel()).status().message(),
              HasSubstr("no place for (1): vision_tower.w"));
}

TEST(PartNames, EveryFaultIsNamedAsTheFilesHaveIt) {
  SimFileSystem disk;
  std::vector<std::string> names = kOlder;
  names[1] = "language_model.model.layers.0.other";
  names.emplace_back("audio_tower.weight");
  names.emplace_back("vision_towers.weight");
  // The name in a directory of the text part alone is none in this one.
  names.emplace_back("model.layers.0.w");
  Write(disk, names);
  EXPECT_THAT(OpenTensors(disk, ".", TextModel()).status().message(),
              AllOf(HasSubstr("missing tensors (1): language_model.model.layers.0.w"),
                    HasSubstr("tensors that the model has no place for (4): audio_tower.weight, "
                              "language_model.model.layers.0.other, model.layers.0.w, "
                              "vision_towers.weight")));
  // A head that is none of a copy.
  Write(disk, kNewer);
  EXPECT_THAT(OpenTensors(disk, ".", TextModel(true)).status().message(),
              HasSubstr("lm_head.weight differs from model.language_model.embed_tokens.weight"));
  // One tensor in both spellings.
  names = kOlder;
  names.push_back(kNewer[1]);
  Write(disk, names);
  EXPECT_EQ(HfModelDir::Open(disk, ".").status().code(), StatusCode::kInvalidData);
}

// The vision part's names are none in a directory of a text model, nor is the text part's.
TEST(PartNames, ATextModelAloneHasNoOtherParts) {
  SimFileSystem disk;
  Write(disk, kOlder, R"({"model_type": "llama", "text_config": null})");
  const std::string message = OpenTensors(disk, ".", TextModel()).status().message();
  EXPECT_THAT(message, AllOf(HasSubstr("missing tensors (3): lm_head.weight"),
                             HasSubstr("no place for (7)")));
  EXPECT_THAT(message, Not(HasSubstr("missing tensors (3): language_model")));
  EXPECT_FALSE(ValueOrThrow(PartNames::Of("", "c")).several());
  EXPECT_FALSE(ValueOrThrow(PartNames::Of("[]", "c")).several());
  EXPECT_FALSE(PartNames::Of("{", "c").ok());
}

}  // namespace
}  // namespace keel::checkpoint
