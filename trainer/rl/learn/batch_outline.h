// BatchOutline: what every rank knows of a step's batch: how long each response is, and how much of
// it is learnt from. From it each rank finds by itself which mini-batches there are, which
// data-parallel rank learns from which response, and what losses are divided by. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "trainer/algorithms/packed.h"
#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// The responses of one update: indexes into the step's batch.
using MiniBatch = std::vector<int64_t>;

struct BatchOutline {
  struct Entry {
    int64_t position = 0;       // of its prompt in the run
    int64_t prompt_tokens = 0;  // of the prompt
    int64_t tokens = 0;         // of the response
    int64_t policy_tokens = 0;  // of these, to learn from
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> responses;  // in the batch's order

  static BatchOutline Of(const RolloutBatch& batch);
  int64_t prompt_tokens() const;
  int64_t response_tokens() const;

  // This machine's way: both ends are the same program.
  std::string Bytes() const;
  // kInternal for bytes that are not of that form.
  static Result<BatchOutline> FromBytes(std::string_view bytes);
};

// Which responses an update takes: those of `prompts_each` prompts, in order, or shuffled by (seed,
// step, epoch).
struct MiniBatchOptions {
  int64_t prompts_each = 1;
  bool shuffle = false;
  uint64_t seed = 0;
};
// All of them; the last may be smaller.
std::vector<MiniBatch> CutIntoMiniBatches(const BatchOutline& outline,
                                          const MiniBatchOptions& options, int64_t step,
                                          int64_t epoch);

// The responses of an update that each of `dp` data-parallel ranks learns from, in order. Shares
// are even in tokens. An empty response teaches nothing and has no place for a value: it is
// nobody's.
std::vector<std::vector<int64_t>> DealOut(const BatchOutline& outline,
                                          std::span<const int64_t> update, int dp);

// What the losses of an update are divided by.
LossDenominators DenominatorsOf(const BatchOutline& outline, std::span<const int64_t> update,
                                double scale_factor);

}  // namespace keel::trainer::rl
