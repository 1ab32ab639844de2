#pragma once

#include "model/config/hf_config.h"

namespace keel::model {

// The least that a config.json of a llama must say; the tests say more, or another family.
inline Json Small() {
  return {{"model_type", "llama"},  {"hidden_size", 8},         {"intermediate_size", 16},
          {"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"vocab_size", 259}};
}

// Of dots1, whose experts have no numbers of its own.
inline Json Routed() {
  return {{"n_routed_experts", 8},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 4},
          {"n_shared_experts", 2}};
}

}  // namespace keel::model
