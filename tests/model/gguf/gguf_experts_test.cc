// Experts of GGUF files, in config.json.

#include "model/gguf/gguf_experts.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/model/gguf/gguf_configs.h"

namespace keel::model {
namespace {

using testing::ConfigError;
using testing::ConfigOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyOf;

TEST(GgufExpertsTest, ALlamaWithExpertsIsMixtral) {
  GgufBuilder gguf = TinyOf("llama");
  gguf.Int("llama.expert_count", 4);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("key llama.expert_used_count: is missing"));
  gguf.Int("llama.expert_used_count", 2);
  const GgufConfig config = ValueOrThrow(ConfigOf(gguf));
  EXPECT_EQ(config.experts, 4);
  EXPECT_EQ(config.config["model_type"], "mixtral");
  EXPECT_EQ(config.config["num_local_experts"], 4);
  EXPECT_EQ(config.config["num_experts_per_tok"], 2);
  gguf.Int("llama.expert_feed_forward_length", 8);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("8 is not supported, expected 16"));
}

TEST(GgufExpertsTest, ExpertsOfQwen) {
  GgufBuilder gguf = TinyOf("qwen3moe");
  gguf.Int("qwen3moe.expert_count", 4);
  gguf.Int("qwen3moe.expert_used_count", 3);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("expert_feed_forward_length: is missing"));
  gguf.Int("qwen3moe.expert_feed_forward_length", 12);
  const Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["num_experts"], 4);
  EXPECT_EQ(config["moe_intermediate_size"], 12);
  EXPECT_EQ(config["intermediate_size"], 16);
  EXPECT_EQ(config["norm_topk_prob"], true);
  const auto with = [&](const auto& change) {
    GgufBuilder changed = gguf;
    change(changed);
    return ConfigError(changed);
  };
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_shared_count", 1); }),
              HasSubstr("expert_shared_count: 1 is not supported, expected 0"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_gating_func", 2); }),
              HasSubstr("expert_gating_func: 2 is not supported, expected 1"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Bool("qwen3moe.expert_weights_norm", false); }),
              HasSubstr("expert_weights_norm: false is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Float("qwen3moe.expert_weights_scale", 2.5f); }),
              HasSubstr("expert_weights_scale: 2.5 is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_group_count", 2); }),
              HasSubstr("expert_group_count: is not understood"));
}

// Beside the experts that are chosen, one for every token; their weights stay as the softmax has
// them.
TEST(GgufExpertsTest, ASharedExpert) {
  GgufBuilder gguf = TinyOf("qwen2moe");
  gguf.Int("qwen2moe.expert_count", 4);
  gguf.Int("qwen2moe.expert_used_count", 2);
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["model_type"], "qwen2_moe");
  EXPECT_EQ(config["moe_intermediate_size"], 8);  // what the first files did not say
  EXPECT_EQ(config["shared_expert_intermediate_size"], 16);
  gguf.Int("qwen2moe.expert_feed_forward_length", 12);
  gguf.Int("qwen2moe.expert_shared_feed_forward_length", 20);
  gguf.Tensor("blk.0.attn_q.bias", {12}, std::vector<float>(12, 0.5f));
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["moe_intermediate_size"], 12);
  EXPECT_EQ(config["shared_expert_intermediate_size"], 20);
  EXPECT_EQ(config["norm_topk_prob"], false);
  EXPECT_EQ(config["qkv_bias"], true);
  EXPECT_FALSE(config.contains("attention_bias"));
  gguf.Bool("qwen2moe.expert_weights_norm", true);
  EXPECT_THAT(ConfigError(gguf),
              HasSubstr("expert_weights_norm: true is not supported, expected false"));
  gguf.Drop("qwen2moe.expert_weights_norm");
  gguf.Int("qwen2moe.expert_shared_count", 2);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("expert_shared_count: 2 is not supported, expected 1"));
}

}  // namespace
}  // namespace keel::model
