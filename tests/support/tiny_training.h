// A model and batches small enough to train under every layout in a test.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"

namespace keel::testing {

inline constexpr int64_t kBatch = 8;    // sequences a step
inline constexpr int64_t kLength = 24;  // at most; sequences differ in length

// Vocabulary 131 does not divide by 2; 3 layers do not divide over 2 stages.
inline model::HfConfig TinyConfig(bool tied, model::Family family) {
  model::HfConfig config;
  config.family = family;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 131;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  config.attention_bias = family == model::Family::kQwen2;
  config.initializer_range = 0.1;
  if (family == model::Family::kGemma2) {
    // Shorter than the sequences, in two layers of three; every softcap in reach.
    config.activation = model::Activation::kGeluTanh;
    config.sliding_window = 5;
    config.windowed = {true, false, true};
    config.query_pre_attn_scalar = 5;
    config.score_softcap = 2;
    config.logit_softcap = 8;
  }
  if (family == model::Family::kGranite) {
    config.embedding_multiplier = 3;
    config.attention_multiplier = 0.2;
    config.residual_multiplier = 0.8;
    config.logits_scaling = 1.5;
  }
  if (family == model::Family::kArcee) config.activation = model::Activation::kRelu2;
  if (family == model::Family::kGptNeox) {
    config.activation = model::Activation::kGelu;
    config.num_key_value_heads = config.num_attention_heads;
    config.parallel_residual = true;
    config.attention_bias = config.output_bias = config.mlp_bias = true;
    config.rope.rotated = 0.5;
  }
  if (family == model::Family::kGpt2) {
    // Not its own: on a GPU that is pretended the tanh of a row depends on where the row stands.
    config.activation = model::Activation::kRelu;
    config.num_key_value_heads = config.num_attention_heads;
    config.attention_bias = config.output_bias = config.mlp_bias = true;
    config.scores_by_layer = true;
  }
  if (family == model::Family::kPhi) {
    config.activation = model::Activation::kGelu;
    config.parallel_residual = true;
    config.attention_bias = config.output_bias = config.mlp_bias = true;
    config.rope.rotated = 0.5;
  }
  if (family == model::Family::kCohere) {
    config.parallel_residual = true;
    config.logit_scale = 0.7;
    config.rope.interleaved = true;
  }
  if (family == model::Family::kQwen2Moe) {
    config.attention_bias = true;
    config.moe = {.experts = 5, .top_k = 2, .width = 17, .shared_width = 23};
    config.dense_ffn = {false, true, false};
  }
  if (family == model::Family::kQwen3Moe || family == model::Family::kMixtral) {
    config.moe = {.experts = 6, .top_k = 2, .width = 24, .renormalize = true};
    if (family == model::Family::kQwen3Moe) {
      config.dense_ffn = {false, true, false};
      config.moe.renormalize = false;
    }
  }
  if (family == model::Family::kQwen3Next || family == model::Family::kQwen35) {
    config.delta = {.key_heads = 4, .value_heads = 4, .key_dim = 4, .value_dim = 2, .taps = 2};
    config.recurrent = {true, false, true};
    config.rope.rotated = 0.5;
    if (family == model::Family::kQwen3Next) {
      config.delta = {4, 8, 5, 3, 4, /*by_key_head=*/true};
      config.moe = {.experts = 5, .top_k = 2, .width = 17, .renormalize = true, .shared_width = 23};
      config.dense_ffn = {false, true, false};
    }
  }
  if (family == model::Family::kDeepseekV3) {
    config.num_key_value_heads = config.num_attention_heads;
    config.latent = {
        .q_rank = 10, .kv_rank = 14, .plain_dims = 6, .turned_dims = 4, .value_dims = 8};
    config.head_dim = 10;
    config.rope.interleaved = true;
    config.moe = {.experts = 6,
                  .top_k = 2,
                  .width = 24,
                  .score = model::RouterScore::kSigmoid,
                  .fp32_router = true,
                  .choice_bias = true,
                  .groups = 3,
                  .top_groups = 2,
                  .renormalize = true,
                  .scale = 1.5,
                  .shared_width = 24,
                  .shared_gated = false};
    config.dense_ffn = {true, false, false};
  }
  return config;
}

// Deterministic rows of several lengths with some targets ignored.
struct Rows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<int32_t>> targets;
};
inline Rows RowsOfStep(int step) {
  Rows rows;
  for (int64_t i = 0; i < kBatch; ++i) {
    const int64_t length = kLength - (step * 5 + i * 3) % 11;
    std::vector<int32_t> tokens, targets;
    for (int64_t t = 0; t <= length; ++t)
      tokens.push_back(static_cast<int32_t>((t * t * 7 + i * 13 + step * 29 + t) % 131));
    for (int64_t t = 0; t < length; ++t)
      targets.push_back((t + i) % 7 == 0 ? -100 : tokens[static_cast<size_t>(t) + 1]);
    tokens.pop_back();
    rows.tokens.push_back(tokens);
    rows.targets.push_back(targets);
  }
  return rows;
}

inline std::vector<model::ModelBatch> MicroBatches(const Rows& rows, int dp_rank, int dp,
                                                   int microbatches, int64_t pad,
                                                   at::Device device = at::kCPU) {
  std::vector<model::ModelBatch> batches;
  const int64_t mine = kBatch / dp;
  const int64_t each = mine / microbatches;
  for (int64_t m = 0; m < microbatches; ++m) {
    std::vector<int64_t> ids, targets, positions, boundaries = {0};
    for (int64_t i = dp_rank * mine + m * each; i < dp_rank * mine + (m + 1) * each; ++i) {
      const auto& row = rows.tokens[static_cast<size_t>(i)];
      ids.insert(ids.end(), row.begin(), row.end());
      const auto& target = rows.targets[static_cast<size_t>(i)];
      targets.insert(targets.end(), target.begin(), target.end());
      for (size_t t = 0; t < row.size(); ++t) positions.push_back(static_cast<int64_t>(t));
      boundaries.push_back(static_cast<int64_t>(ids.size()));
    }
    int64_t extra = (pad - static_cast<int64_t>(ids.size()) % pad) % pad;
    for (int64_t t = 0; t < extra; ++t) {
      ids.push_back(0);
      targets.push_back(-100);
      positions.push_back(t);
    }
    if (extra > 0) boundaries.push_back(static_cast<int64_t>(ids.size()));
    model::ModelBatch batch;
    batch.ids = at::tensor(ids, at::kLong).to(device);
    batch.targets = at::tensor(targets, at::kLong).to(device);
    batch.packing.positions = at::tensor(positions, at::kInt).to(device);
    batch.packing.boundaries = boundaries;
    batches.push_back(batch);
  }
  return batches;
}

// The targets that count over the global batch.
inline int64_t LossTokens(const Rows& rows) {
  int64_t count = 0;
  for (const auto& targets : rows.targets) {
    for (const int32_t target : targets) count += target != -100;
  }
  return count;
}

}  // namespace keel::testing
