// Arithmetic of a training step, and the rate it is held against.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config/hf_config.h"

namespace keel::trainer {

// Floating-point operations of forward and backward per token: 6 N + 3 L heads (a key's dims + a
// value's dims) T, with
// N the weights that take part in a token's matrix products (a tied embedding once, as the head; of
// experts those that the token goes through, and the router) and causal
// attention over T tokens (PaLM's formula, halved for causality as in llm.c). Recompute is not
// counted.
double TrainFlopsPerToken(const model::HfConfig& config, double sequence_length);

// Operations per second of square matrix products in this dtype on this device with the current
// threads, on average over three products and 0.03 s or more, on a GPU over 0.2 s. Ranks that share
// cores measure at the same time, so that the sum over ranks is the machine's rate.
double MeasureGemmRate(at::ScalarType dtype, at::Device device);

}  // namespace keel::trainer
