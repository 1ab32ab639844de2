#include "common/tensors/renamed_tensors.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace keel {
namespace {

TEST(RenamedTensors, FilesOfGptNeoxHaveOtherNames) {
  const RenamedTensors names("gpt_neox");
  EXPECT_FALSE(names.empty());
  const std::string file = "gpt_neox.layers.7.", model = "model.layers.7.";
  for (const auto& [theirs, ours] : std::vector<std::pair<std::string, std::string>>{
           {"gpt_neox.embed_in.weight", "model.embed_tokens.weight"},
           {file + "input_layernorm.bias", model + "input_layernorm.bias"},
           {file + "attention.query_key_value.weight", model + "self_attn.query_key_value.weight"},
           {file + "attention.dense.bias", model + "self_attn.o_proj.bias"},
           {file + "mlp.dense_h_to_4h.weight", model + "mlp.up_proj.weight"},
           {file + "mlp.dense_4h_to_h.bias", model + "mlp.down_proj.bias"},
           {"gpt_neox.final_layer_norm.weight", "model.norm.weight"},
           {"embed_out.weight", "lm_head.weight"}}) {
    EXPECT_EQ(names.ModelName(theirs), ours);
    EXPECT_EQ(names.FileName(ours), theirs);
  }
  // A base model that was saved alone.
  EXPECT_EQ(names.ModelName("layers.0.attention.dense.weight"), "layers.0.self_attn.o_proj.weight");
}

// A part of a name between dots, and nothing that only looks like one.
TEST(RenamedTensors, OnlyWholePartsAreRenamed) {
  const RenamedTensors names("starcoder2");
  EXPECT_EQ(names.ModelName("model.layers.0.mlp.c_fc.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(names.ModelName("model.layers.0.mlp.c_fc2.weight"), "model.layers.0.mlp.c_fc2.weight");
  EXPECT_EQ(names.ModelName("model.layers.0.xmlp.c_fc.weight"), "model.layers.0.xmlp.c_fc.weight");
  EXPECT_EQ(names.FileName("model.layers.0.mlp.down_proj.bias"), "model.layers.0.mlp.c_proj.bias");
}

TEST(RenamedTensors, OfOtherFamiliesNone) {
  for (const char* type : {"", "llama", "qwen3"}) {
    EXPECT_TRUE(RenamedTensors(type).empty()) << type;
    EXPECT_EQ(RenamedTensors(type).ModelName("gpt_neox.embed_in.weight"),
              "gpt_neox.embed_in.weight");
  }
}

}  // namespace
}  // namespace keel
