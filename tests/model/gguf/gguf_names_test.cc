// Where the tensors of GGUF files go.

#include "model/gguf/gguf_names.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace keel::model {
namespace {

using ::testing::HasSubstr;

// Tensors of experts go to a place each, of which they are one behind the other.
TEST(GgufNamesTest, StacksOfExperts) {
  GgufConfig config;
  config.family = GgufFamily::kQwen3Moe;
  config.experts = 3;
  GgufTensor stack{"blk.2.ffn_up_exps.weight", GgmlType::kF32, {3, 4, 8}, 64, 384};
  const std::vector<HfPlace> places = ValueOrThrow(HfPlacesOf(stack, config, "a.gguf"));
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2].name, "model.layers.2.mlp.experts.2.up_proj.weight");
  const GgufTensor part = PartAt(places[2], stack);
  EXPECT_EQ(part.shape, (Dims{4, 8}));
  EXPECT_EQ(part.offset, 64 + 2 * 128);
  EXPECT_EQ(part.bytes, 128);
  config.experts = 4;
  EXPECT_THAT(HfPlacesOf(stack, config, "a.gguf").status().message(),
              HasSubstr("blk.2.ffn_up_exps.weight: expected a matrix for each of 4 experts"));
  config.experts = 0;
  EXPECT_THAT(HfPlacesOf(stack, config, "a.gguf").status().message(), HasSubstr("no place"));
  config.family = GgufFamily::kMixtral;
  config.head_dim = 4;
  config.experts = 3;
  const auto name = [&](const char* tensor) {
    GgufTensor of = stack;
    of.name = tensor;
    of.shape = {4, 8};
    return ValueOrThrow(HfPlacesOf(of, config, "")).front();
  };
  EXPECT_EQ(name("blk.0.ffn_gate_inp.weight").name, "model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_TRUE(name("blk.0.ffn_gate_inp.weight").router);
  EXPECT_EQ(name("blk.0.ffn_down.1.weight").name,
            "model.layers.0.block_sparse_moe.experts.1.w2.weight");
  EXPECT_EQ(name("blk.0.attn_q.weight").mixed_head_rows, 4);
}

std::vector<HfPlace> PlacesIn(GgufFamily family, const char* tensor, Dims shape = {4, 8}) {
  GgufConfig config;
  config.family = family;
  config.head_dim = 4;
  config.experts = GgufTableOf(family).experts.names.empty() ? 0 : 3;
  return ValueOrThrow(HfPlacesOf({tensor, GgmlType::kF32, shape, 64, 128}, config, "a.gguf"));
}
std::string PlaceIn(GgufFamily family, const char* tensor) {
  return PlacesIn(family, tensor).front().name;
}
std::string NoPlaceIn(GgufFamily family, const char* tensor) {
  GgufConfig config;
  config.family = family;
  return HfPlacesOf({tensor, GgmlType::kF32, {4, 8}, 64, 128}, config, "").status().message();
}

TEST(GgufNamesTest, NormsBehind) {
  for (const GgufFamily family : {GgufFamily::kOlmo2, GgufFamily::kOlmo3, GgufFamily::kExaone4}) {
    EXPECT_EQ(PlaceIn(family, "blk.1.post_attention_norm.weight"),
              "model.layers.1.post_attention_layernorm.weight");
    EXPECT_EQ(PlaceIn(family, "blk.1.post_ffw_norm.weight"),
              "model.layers.1.post_feedforward_layernorm.weight");
    EXPECT_EQ(PlacesIn(family, "blk.1.attn_q.weight").front().mixed_head_rows, 0);
    EXPECT_THAT(NoPlaceIn(family, "blk.1.attn_norm.weight"), HasSubstr("no place"));
    EXPECT_THAT(NoPlaceIn(family, "blk.1.ffn_norm.weight"), HasSubstr("no place"));
  }
  EXPECT_EQ(PlaceIn(GgufFamily::kSeedOss, "blk.1.post_attention_norm.weight"),
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(PlaceIn(GgufFamily::kSeedOss, "blk.1.attn_norm.weight"),
            "model.layers.1.input_layernorm.weight");
  EXPECT_THAT(NoPlaceIn(GgufFamily::kSeedOss, "blk.1.ffn_norm.weight"), HasSubstr("no place"));
}

TEST(GgufNamesTest, FusedWeightsOfPhi) {
  EXPECT_EQ(PlaceIn(GgufFamily::kPhi3, "blk.1.attn_qkv.weight"),
            "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(PlaceIn(GgufFamily::kPhi3, "blk.1.ffn_up.weight"),
            "model.layers.1.mlp.gate_up_proj.weight");
  for (const char* part : {"blk.1.attn_q.weight", "blk.1.ffn_gate.weight"})
    EXPECT_THAT(NoPlaceIn(GgufFamily::kPhi3, part), HasSubstr("no place"));
  EXPECT_THAT(NoPlaceIn(GgufFamily::kQwen2, "blk.1.attn_qkv.weight"), HasSubstr("no place"));
}

TEST(GgufNamesTest, FactorsOfARotationHaveNoPlace) {
  EXPECT_TRUE(PlacesIn(GgufFamily::kPhi3, "rope_factors_long.weight").empty());
  EXPECT_TRUE(PlacesIn(GgufFamily::kPhi3, "rope_factors_short.weight").empty());
  EXPECT_THAT(NoPlaceIn(GgufFamily::kPhi3, "rope_freqs.weight"), HasSubstr("no place"));
  EXPECT_TRUE(PlacesIn(GgufFamily::kLlama, "rope_freqs.weight").empty());
  EXPECT_THAT(NoPlaceIn(GgufFamily::kLlama, "rope_factors_long.weight"), HasSubstr("no place"));
}

TEST(GgufNamesTest, RowsOfHeadsThatAreMixed) {
  for (const GgufFamily family : {GgufFamily::kLlama, GgufFamily::kMixtral, GgufFamily::kSmolLm3,
                                  GgufFamily::kGranite, GgufFamily::kArcee}) {
    EXPECT_EQ(PlacesIn(family, "blk.1.attn_k.weight").front().mixed_head_rows, 4);
    EXPECT_EQ(PlacesIn(family, "blk.1.attn_v.weight").front().mixed_head_rows, 0);
  }
}

// A vector in some files, and a matrix of one row in others.
TEST(GgufNamesTest, ASharedExpert) {
  EXPECT_EQ(PlaceIn(GgufFamily::kQwen2Moe, "blk.1.ffn_up_shexp.weight"),
            "model.layers.1.mlp.shared_expert.up_proj.weight");
  for (const Dims& shape : {Dims{8}, Dims{1, 8}}) {
    const GgufTensor tensor{"blk.1.ffn_gate_inp_shexp.weight", GgmlType::kF32, shape, 64, 32};
    const HfPlace place = PlacesIn(GgufFamily::kQwen2Moe, tensor.name.c_str(), shape).front();
    EXPECT_EQ(place.name, "model.layers.1.mlp.shared_expert_gate.weight");
    EXPECT_TRUE(place.router);
    EXPECT_EQ(PartAt(place, tensor).shape, (Dims{1, 8}));
    EXPECT_EQ(PartAt(place, tensor).bytes, 32);
  }
  EXPECT_THAT(NoPlaceIn(GgufFamily::kQwen3Moe, "blk.1.ffn_up_shexp.weight"), HasSubstr("no place"));
}

}  // namespace
}  // namespace keel::model
