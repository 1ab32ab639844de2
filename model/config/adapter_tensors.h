// The tensors of a model's adapters: which of its weights have one, and A and B of each.
// Torch-free; decoder.h declares the same, and a test compares the two.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/tensors/shard_table.h"
#include "model/config/hf_config.h"

namespace keel::model {

// Whether config.adapter stands beside this weight ("model.layers.0.self_attn.q_proj.weight"). It
// may beside every matrix of a layer that a token is multiplied with as it is: not beside experts',
// routers', and the gate of an expert for all tokens.
bool HasAdapter(const HfConfig& config, std::string_view weight);

// The names of its two: "model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in], and "lora_B"
// [out, rank].
struct AdapterNames {
  std::string a, b;
};
AdapterNames AdapterNamesOf(std::string_view weight);

// Of each weight that has an adapter A, then B, as F32, in the order of TensorsOf.
std::vector<TensorInfo> AdapterTensorsOf(const HfConfig& config);

// As text, what adapters those are: of the same beside the same weights, however they were named.
std::string AdapterDigest(const HfConfig& config);

// Why config.adapter is none of this model: names that no weight has. Empty where it fits.
std::vector<std::string> AdapterProblems(const HfConfig& config);

}  // namespace keel::model
