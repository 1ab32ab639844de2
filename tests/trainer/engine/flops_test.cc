#include "trainer/engine/flops.h"

#include <gtest/gtest.h>

namespace keel::trainer {
namespace {

// Every matrix that a token is multiplied with, written out: a product takes two operations an
// element forward and four backward. Causal attention meets half of T tokens, twice (scores,
// values).
TEST(FlopsTest, CountsEveryMatrixThatATokenMeets) {
  model::HfConfig config;
  config.hidden_size = 8;
  config.intermediate_size = 5;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 3;
  config.vocab_size = 10;
  const double layer = 8 * 6 + 8 * 3 + 8 * 3 + 6 * 8 + 3 * (8 * 5);  // q, k, v, o, feed-forward
  const double attention = 2 * 6 * (4.0 / 2);
  const double head = 8 * 10;
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (2 * (layer + attention) + head));
  config.tie_word_embeddings = true;  // the head is still a product
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (2 * (layer + attention) + head));
  // A layer of seven experts, of which a token goes through two, and the router.
  config.family = model::Family::kQwen3Moe;
  config.moe = {.experts = 7, .top_k = 2, .width = 4};
  config.dense_ffn = {true, false};
  const double more = 7 * 8 + 2 * 3 * (8 * 4) - 3 * (8 * 5);
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (2 * (layer + attention) + more + head));
  // And one that all tokens go through, with the row that weighs it.
  config.family = model::Family::kQwen2Moe;
  config.moe.shared_width = 6;
  EXPECT_EQ(TrainFlopsPerToken(config, 4),
            6 * (2 * (layer + attention) + more + 3 * (8 * 6) + 8 + head));
  // Without a gate.
  config.family = model::Family::kArcee;
  config.moe = {};
  config.dense_ffn.clear();
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (2 * (layer + attention - 8 * 5) + head));
}

// Latent attention: what heads share, and of each head queries, keys and values of it.
TEST(FlopsTest, CountsLatentAttention) {
  model::HfConfig config;
  config.family = model::Family::kYoutu;
  config.hidden_size = 8;
  config.intermediate_size = 5;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.vocab_size = 10;
  config.latent = {.q_rank = 6, .kv_rank = 4, .plain_dims = 3, .turned_dims = 2, .value_dims = 7};
  config.head_dim = 7;
  const double kv = 8 * (4 + 2) + 4 * 2 * (3 + 7);
  const double q = 8 * 6 + 6 * 2 * 5;
  const double rest = 2 * 7 * 8 + 3 * (8 * 5) + 8 * 10;
  const double attention = 2 * (5 + 7) * (4.0 / 2);  // scores of 5 dims, sums of 7
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (q + kv + rest + attention));
  config.latent.q_rank = 0;
  EXPECT_EQ(TrainFlopsPerToken(config, 4), 6 * (8 * 2 * 5 + kv + rest + attention));
}

}  // namespace
}  // namespace keel::trainer
