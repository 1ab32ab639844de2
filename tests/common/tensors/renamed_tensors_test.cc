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

// As files of GPT-2, GPT-Neo and OPT have them; a base model that was saved alone, too.
TEST(RenamedTensors, FilesOfLearnedPositionsHaveOtherNames) {
  const std::string layer = "model.layers.1.";
  struct Pair {
    const char* family;
    std::string theirs, ours;
  };
  for (const Pair& pair : std::vector<Pair>{
           {"gpt2", "transformer.wte.weight", "model.embed_tokens.weight"},
           {"gpt2", "transformer.wpe.weight", "model.embed_positions.weight"},
           {"gpt2", "transformer.h.1.ln_1.bias", layer + "input_layernorm.bias"},
           {"gpt2", "transformer.h.1.attn.c_attn.weight",
            layer + "self_attn.query_key_value.weight"},
           {"gpt2", "transformer.h.1.attn.c_proj.bias", layer + "self_attn.o_proj.bias"},
           {"gpt2", "transformer.h.1.ln_2.weight", layer + "post_attention_layernorm.weight"},
           {"gpt2", "transformer.h.1.mlp.c_fc.weight", layer + "mlp.up_proj.weight"},
           {"gpt2", "transformer.h.1.mlp.c_proj.weight", layer + "mlp.down_proj.weight"},
           {"gpt2", "transformer.ln_f.weight", "model.norm.weight"},
           {"gpt2", "lm_head.weight", "lm_head.weight"},
           {"gpt_neo", "transformer.h.1.attn.attention.k_proj.weight",
            layer + "self_attn.k_proj.weight"},
           {"gpt_neo", "transformer.h.1.attn.attention.out_proj.bias",
            layer + "self_attn.o_proj.bias"},
           {"gpt_neo", "transformer.h.1.mlp.c_proj.bias", layer + "mlp.down_proj.bias"},
           {"opt", "model.decoder.embed_tokens.weight", "model.embed_tokens.weight"},
           {"opt", "model.decoder.embed_positions.weight", "model.embed_positions.weight"},
           {"opt", "model.decoder.layers.1.self_attn_layer_norm.weight",
            layer + "input_layernorm.weight"},
           {"opt", "model.decoder.layers.1.self_attn.out_proj.weight",
            layer + "self_attn.o_proj.weight"},
           {"opt", "model.decoder.layers.1.final_layer_norm.bias",
            layer + "post_attention_layernorm.bias"},
           {"opt", "model.decoder.layers.1.fc1.weight", layer + "mlp.up_proj.weight"},
           {"opt", "model.decoder.layers.1.fc2.bias", layer + "mlp.down_proj.bias"},
           {"opt", "model.decoder.final_layer_norm.bias", "model.norm.bias"},
           {"phi", "model.layers.1.self_attn.dense.bias", layer + "self_attn.o_proj.bias"},
           {"phi", "model.layers.1.mlp.fc2.weight", layer + "mlp.down_proj.weight"},
           {"phi", "model.final_layernorm.weight", "model.norm.weight"},
           {"phi", "lm_head.bias", "lm_head.bias"},
           {"gptj", "transformer.h.1.attn.k_proj.weight", layer + "self_attn.k_proj.weight"},
           {"gptj", "transformer.h.1.attn.out_proj.weight", layer + "self_attn.o_proj.weight"},
           {"gptj", "transformer.h.1.mlp.fc_in.bias", layer + "mlp.up_proj.bias"},
           {"gptj", "transformer.ln_f.bias", "model.norm.bias"}}) {
    const RenamedTensors names(pair.family);
    EXPECT_EQ(names.ModelName(pair.theirs), pair.ours);
    EXPECT_EQ(names.FileName(pair.ours), pair.theirs);
  }
  EXPECT_EQ(RenamedTensors("gpt2").ModelName("h.1.ln_1.bias"), "layers.1.input_layernorm.bias");
  EXPECT_EQ(RenamedTensors("opt").ModelName("decoder.layers.1.fc1.bias"),
            "layers.1.mlp.up_proj.bias");
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
