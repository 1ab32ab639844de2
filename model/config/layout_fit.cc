#include "model/config/layout_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/config/adapter_tensors.h"
#include "model/config/head_split.h"

namespace keel::model {

namespace {

// Whether a matrix in which q, k and v stand has an adapter in some layer.
bool JoinedHasAdapter(const HfConfig& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.Layer(layer).qkv == QkvTensors::kJoined &&
        HasAdapter(config, fmt::format("model.layers.{}.self_attn.query_key_value.weight", layer)))
      return true;
  }
  return false;
}

// Whether the last of `tp` ranks has a row of the vocabulary, whose padding follows at its end.
bool VocabularyReaches(int64_t vocab_size, int64_t tp) {
  const int64_t rows = (vocab_size + tp - 1) / tp;
  return (tp - 1) * rows < vocab_size;
}

}  // namespace

std::vector<std::string> LayoutProblems(const HfConfig& config, const LayoutWish& wish) {
  std::vector<std::string> problems;
  const auto lacks = [&](const char* name, int64_t value, const char* what, int64_t most) {
    problems.push_back(
        fmt::format("{} {} leaves some of the ranks of tensor_model_parallel_size {} without {}: "
                    "at most {} fit",
                    name, value, wish.tp, what, most));
  };
  if (config.num_attention_heads < wish.tp) {
    lacks("num_attention_heads", config.num_attention_heads, "a head", config.num_attention_heads);
  }
  if (!config.recurrent.empty() && config.delta.key_heads < wish.tp) {
    lacks("linear_num_key_heads", config.delta.key_heads, "a key head of its linear attention",
          config.delta.key_heads);
  }
  if (SharesKvHeads(config, wish.tp) && JoinedHasAdapter(config)) {
    problems.push_back(fmt::format(
        "adapters of the matrix in which q, k and v stand have one A, and "
        "tensor_model_parallel_size {} deals out k and v otherwise than q: at most {} fit, or "
        "other target_modules",
        wish.tp, config.num_key_value_heads));
  }
  bool dense = false;
  bool experts = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    (config.Layer(layer).ffn == FfnKind::kMoe ? experts : dense) = true;
  if (dense && config.intermediate_size < wish.tp) {
    lacks("intermediate_size", config.intermediate_size, "a row of the feed-forward block",
          config.intermediate_size);
  }
  if (experts && config.moe.width < wish.tp) {
    // By the key that the family's files have.
    const bool own = ToHfJson(config, DType::kF32).contains("moe_intermediate_size");
    lacks(own ? "moe_intermediate_size" : "intermediate_size", config.moe.width,
          "a row of each expert", config.moe.width);
  }
  if (experts && config.moe.shared_width > 0 && config.moe.shared_width < wish.tp) {
    lacks(config.moe.shared_gated ? "shared_expert_intermediate_size"
                                  : "n_shared_experts times moe_intermediate_size",
          config.moe.shared_width, "a row of the shared expert", config.moe.shared_width);
  }
  if (!VocabularyReaches(config.vocab_size, wish.tp)) {
    int64_t most = std::min<int64_t>(wish.tp, config.vocab_size);
    while (most > 1 && !VocabularyReaches(config.vocab_size, most)) --most;
    lacks("vocab_size", config.vocab_size, "a row of the vocabulary", most);
  }
  if (config.num_hidden_layers < wish.stages) {
    problems.push_back(
        fmt::format("num_hidden_layers {} is less than pipeline_model_parallel_size {}",
                    config.num_hidden_layers, wish.stages));
  }
  return problems;
}

}  // namespace keel::model
