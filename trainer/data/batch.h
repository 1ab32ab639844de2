// Packed micro-batches of a step, as one data-parallel rank sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "trainer/data/sample.h"

namespace keel::trainer {

// Several sequences, one after another. T is the sum of their input lengths.
struct MicroBatch {
  std::vector<int32_t> ids;         // [T]
  std::vector<int32_t> targets;     // [T], -100 where nothing is learnt
  std::vector<int32_t> positions;   // [T], from 0 in each sequence
  std::vector<int64_t> boundaries;  // [sequences + 1]
  std::vector<int64_t> lengths;     // [sequences], tokens of the text that each is of
  std::vector<int64_t> sample_ids;
};

// Packs a further sample, of which each piece is a sequence, or a sequence of `tokens` ignored
// ones. A piece is a text of its inputs and its last target, unless these are more tokens than
// `max_length`, to which texts were cut.
void AppendSample(MicroBatch& batch, const Sample& sample, int64_t max_length);
void AppendIgnored(MicroBatch& batch, int64_t tokens);
// Fills up to a multiple; at least one multiple when the batch is empty.
void PadTokens(MicroBatch& batch, int64_t multiple);

struct StepBatch {
  std::vector<int64_t> samples;          // of all ranks, in the order in which they were drawn
  std::vector<MicroBatch> microbatches;  // of this data-parallel rank
  int64_t loss_tokens = 0;  // targets of the global batch, over all data-parallel ranks
  int64_t tokens = 0;       // inputs of the global batch
};

struct BatchOptions {
  int64_t batch_size = 8;        // sequences over all data-parallel ranks
  int64_t micro_batch_size = 1;  // sequences
  int dp_rank = 0;
  int dp = 1;
  int64_t pad_to_multiple =
      1;  // of T: a further sequence of ignored tokens fills up (sequence parallelism)
  // Inputs of a block, where texts are cut into blocks: a text is no longer. Elsewhere no limit.
  int64_t max_length = std::numeric_limits<int64_t>::max();
};

// The micro-batches of a batch's `count` positions: DP rank r takes the r-th of dp equal runs of
// them, and appends what lies at each. A last batch may be shorter: then it is padded with ignored
// sequences, so that every rank runs the same number of micro-batches.
std::vector<MicroBatch> MakeMicroBatches(
    int64_t count, const BatchOptions& options,
    const std::function<void(int64_t position, MicroBatch& batch)>& append);

// Positions [cursor, cursor + count) of the order `at`.
StepBatch MakeStepBatch(const SampleSet& data, const std::function<int64_t(int64_t)>& at,
                        int64_t cursor, int64_t count, const BatchOptions& options);

}  // namespace keel::trainer
