#include "trainer/data/batch.h"

#include <algorithm>

namespace keel::trainer {

namespace {

constexpr int32_t kNoTarget = -100;

}  // namespace

void AppendSample(MicroBatch& batch, const Sample& sample, int64_t max_length) {
  for (size_t piece = 0; piece < sample.pieces.size(); ++piece) {
    const auto first = static_cast<size_t>(sample.pieces[piece]);
    const size_t end = piece + 1 < sample.pieces.size()
                           ? static_cast<size_t>(sample.pieces[piece + 1])
                           : sample.tokens.size();
    for (size_t i = first; i + 1 < end; ++i) {
      batch.ids.push_back(sample.tokens[i]);
      batch.targets.push_back(sample.learn[i + 1] != 0 ? sample.tokens[i + 1] : kNoTarget);
      batch.positions.push_back(static_cast<int32_t>(i - first));
    }
    batch.boundaries.push_back(static_cast<int64_t>(batch.ids.size()));
    batch.lengths.push_back(std::min(static_cast<int64_t>(end - first), max_length));
  }
  batch.sample_ids.push_back(sample.id);
}

void AppendIgnored(MicroBatch& batch, int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) {
    batch.ids.push_back(0);
    batch.targets.push_back(kNoTarget);
    batch.positions.push_back(static_cast<int32_t>(i));
  }
  batch.boundaries.push_back(static_cast<int64_t>(batch.ids.size()));
  batch.lengths.push_back(tokens);
}

void PadTokens(MicroBatch& batch, int64_t multiple) {
  const auto tokens = static_cast<int64_t>(batch.ids.size());
  const int64_t short_of = (multiple - tokens % multiple) % multiple;
  if (tokens == 0) {
    AppendIgnored(batch, multiple);
  } else if (short_of > 0) {
    AppendIgnored(batch, short_of);
  }
}

std::vector<MicroBatch> MakeMicroBatches(
    int64_t count, const BatchOptions& options,
    const std::function<void(int64_t position, MicroBatch& batch)>& append) {
  std::vector<MicroBatch> batches;
  const int64_t per_rank = options.batch_size / options.dp;
  for (int64_t begin = 0; begin < per_rank; begin += options.micro_batch_size) {
    MicroBatch& batch = batches.emplace_back();
    batch.boundaries.push_back(0);
    for (int64_t i = begin; i < std::min(begin + options.micro_batch_size, per_rank); ++i) {
      const int64_t position = options.dp_rank * per_rank + i;
      if (position < count) append(position, batch);
    }
    PadTokens(batch, options.pad_to_multiple);
  }
  return batches;
}

StepBatch MakeStepBatch(const SampleSet& data, const std::function<int64_t(int64_t)>& at,
                        int64_t cursor, int64_t count, const BatchOptions& options) {
  StepBatch step;
  for (int64_t i = 0; i < count; ++i) {
    step.samples.push_back(at(cursor + i));
    step.loss_tokens += data.targets(step.samples.back());
    step.tokens += data.inputs(step.samples.back());
  }
  step.microbatches = MakeMicroBatches(count, options, [&](int64_t position, MicroBatch& batch) {
    AppendSample(batch, data.Get(step.samples[static_cast<size_t>(position)]), options.max_length);
  });
  return step;
}

}  // namespace keel::trainer
