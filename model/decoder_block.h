// Decoder::Block: the parameters of one transformer block.
#pragma once

#include <vector>

#include "model/decoder.h"
#include "model/qkv_projection.h"

namespace keel::model {

struct Decoder::Block {
  parallel::Parameter* input_norm = nullptr;
  QkvProjection qkv;
  parallel::Parameter* q_norm = nullptr;  // Qwen3
  parallel::Parameter* k_norm = nullptr;
  parallel::Parameter* output = nullptr;
  parallel::Parameter* output_bias = nullptr;  // Llama and Qwen3 with attention_bias
  parallel::Parameter* post_norm = nullptr;
  parallel::Parameter* gate_up = nullptr;  // [gate | up] of this rank
  parallel::Parameter* down = nullptr;
  std::vector<parallel::Parameter*> all;
};

}  // namespace keel::model
