#include "model/gguf/gguf_experts.h"

#include <fmt/format.h>

#include <optional>

namespace keel::model {

namespace {

// Keys of which only one value leaves the choice as Keel computes it.
Status ExpectSoftmaxChoice(GgufKeys& keys, const GgufExperts& own) {
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_gating_func", 1));  // softmax
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_shared_count", own.shared ? 1 : 0));
  KEEL_ASSIGN_OR_RETURN(const bool norm, keys.Bool("expert_weights_norm", own.renormalized));
  if (norm != own.renormalized) {
    return keys.Wrong("expert_weights_norm",
                      fmt::format("{} is not supported, expected {}", norm, own.renormalized));
  }
  KEEL_ASSIGN_OR_RETURN(const double scale, keys.Double("expert_weights_scale", 1));
  if (scale == 0 || scale == 1) return Status::Ok();
  return keys.Wrong("expert_weights_scale", fmt::format("{} is not supported, expected 1", scale));
}

}  // namespace

Result<int64_t> ReadGgufExperts(GgufKeys& keys, const GgufExperts& own, int64_t ffn, Json* config) {
  if (own.names.empty()) {
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_count", 0));
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_used_count", 0));
    return 0;
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t experts, keys.Int("expert_count"));
  KEEL_ASSIGN_OR_RETURN(const int64_t used, keys.Int("expert_used_count"));
  if (experts < 1 || experts > kMostGgufExperts)
    return keys.Wrong("expert_count", fmt::format("{} is no number of experts", experts));
  if (used < 1 || used > experts)
    return keys.Wrong("expert_used_count", fmt::format("{} of {} experts", used, experts));
  KEEL_RETURN_IF_ERROR(ExpectSoftmaxChoice(keys, own));
  (*config)["num_experts_per_tok"] = used;
  if (!own.own_width) {
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_feed_forward_length", ffn));
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_shared_feed_forward_length", 0));
    (*config)["num_local_experts"] = experts;
    return experts;
  }
  // The first files with a shared expert did not say the widths, which followed from the dense one.
  const auto fallback = [&](int64_t width) {
    return own.shared ? std::optional(width) : std::nullopt;
  };
  KEEL_ASSIGN_OR_RETURN(const int64_t width,
                        keys.Int("expert_feed_forward_length", fallback(ffn / used)));
  if (own.shared) {
    KEEL_ASSIGN_OR_RETURN(const int64_t shared, keys.Int("expert_shared_feed_forward_length", ffn));
    (*config)["shared_expert_intermediate_size"] = shared;
  } else {
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_shared_feed_forward_length", 0));
  }
  (*config)["num_experts"] = experts;
  (*config)["moe_intermediate_size"] = width;
  // As llama.cpp computes any model of this architecture.
  (*config)["norm_topk_prob"] = own.renormalized;
  (*config)["decoder_sparse_step"] = 1;
  (*config)["mlp_only_layers"] = Json::array();
  return experts;
}

}  // namespace keel::model
