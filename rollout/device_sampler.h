// The choice of tokens where the logits are: on a device, by a kernel of Keel's, for a whole batch
// at once, so that only what was chosen goes to the host.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "rollout/log_probs_mode.h"
#include "rollout/sampler.h"
#include "rollout/sampling.h"

namespace keel::rollout {

struct TokenWanted {
  int64_t row = 0;  // of the logits
  const SamplingParams* params = nullptr;
  Draw draw;
};

// Whether tokens are chosen so: Keel has a kernel for where the logits are.
bool HasDeviceSampler(const at::Device& device);
// Whether all that is asked for comes of the kernel. A host is needed for a penalty, the likeliest
// tokens, and what is said of a prompt.
bool IsForDeviceSampler(const SamplingParams& params);

// What Sampler::Choose says of each, with its draws: the same tokens, but where a draw falls within
// a rounding of the border between two. Under kPolicy and kRaw log-probabilities have the bits that
// one rank that trains there makes of the same logits. `logits`: [rows, columns] fp32 or bf16; ids
// from `vocabulary` on are never chosen. Waits for the device once.
std::vector<Result<ChosenToken>> ChooseOnDevice(const at::Tensor& logits, size_t vocabulary,
                                                LogProbsMode mode,
                                                std::span<const TokenWanted> wanted);

}  // namespace keel::rollout
