// Packs prompts with their responses into micro-batches, and carries values per response token to
// the places where the model predicts these tokens, and back.
//
// Used by the actor, its reference and the critic alike, so that all of them, and every pass over a
// mini-batch, compute the same products: the policy's ratio to itself is exactly 1.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder.h"
#include "trainer/algorithms/loss_aggregation.h"
#include "trainer/rl/learn/batch_share.h"

namespace keel::trainer::rl {

struct RlMicroBatch {
  model::ModelBatch batch;  // targets: the response tokens
  TokenLayout layout;       // the mask's tokens; a sequence per response, and one of padding
  struct Span {
    int64_t begin = 0;  // among all response tokens of the step
    int64_t held = 0;   // among those of the rank's share
    int64_t at = 0;     // row of `batch` that predicts the first of them
    int64_t size = 0;
  };
  std::vector<Span> spans;

  // Values per response token of the share [H] -> [T] fp32 on the batch's device, 0 elsewhere.
  at::Tensor Spread(std::span<const float> values) const;
};

struct RlBatchOptions {
  int64_t micro_batch_size = 8;  // responses
  int dp_rank = 0;
  int dp = 1;
  int64_t pad_to_multiple = 1;  // of T (sequence parallelism)
  at::Device device = at::kCPU;
};

// The micro-batches of this data-parallel rank for the responses of `update`, as DealOut gives
// them. A rank that gets no response gets one of padding alone.
std::vector<RlMicroBatch> MakeRlMicroBatches(const BatchShare& share,
                                             std::span<const int64_t> update,
                                             const RlBatchOptions& options);

std::vector<model::ModelBatch> ModelBatchesOf(const std::vector<RlMicroBatch>& batches);

}  // namespace keel::trainer::rl
