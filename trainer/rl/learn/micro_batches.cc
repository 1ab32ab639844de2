#include "trainer/rl/learn/micro_batches.h"

#include <algorithm>

#include "parallel/tensor/vocab_chunks.h"

namespace keel::trainer::rl {

namespace {

class Packer {
 public:
  void Add(const BatchShare::Held& r) {
    const std::ptrdiff_t prompt = std::ssize(r.prompt);
    const std::ptrdiff_t size = std::ssize(r.tokens);
    const auto begin = static_cast<int64_t>(ids_.size());
    // The last token predicts nothing, so it is no input.
    for (int64_t t = 0; t < prompt + size - 1; ++t) {
      ids_.push_back(t < prompt ? r.prompt[static_cast<size_t>(t)]
                                : r.tokens[static_cast<size_t>(t - prompt)]);
      positions_.push_back(static_cast<int32_t>(t));
      const bool predicts = t >= prompt - 1;
      targets_.push_back(predicts ? r.tokens[static_cast<size_t>(t - prompt + 1)]
                                  : parallel::kIgnoreTarget);
    }
    spans_.push_back({r.begin, r.at, begin + prompt - 1, size});
    mask_.resize(ids_.size(), 0);
    std::copy(r.mask.begin(), r.mask.end(), mask_.begin() + begin + prompt - 1);
    boundaries_.push_back(static_cast<int64_t>(ids_.size()));
    lengths_.push_back(prompt + size);
  }

  RlMicroBatch Finish(const RlBatchOptions& options) {
    const auto n = static_cast<int64_t>(ids_.size());
    const int64_t whole =
        std::max<int64_t>(1, (n + options.pad_to_multiple - 1) / options.pad_to_multiple) *
        options.pad_to_multiple;
    if (whole > n) {
      for (int64_t t = 0; t < whole - n; ++t) {
        ids_.push_back(0);
        targets_.push_back(parallel::kIgnoreTarget);
        positions_.push_back(static_cast<int32_t>(t));
        mask_.push_back(0);
      }
      boundaries_.push_back(whole);
      lengths_.push_back(whole - n);
    }
    RlMicroBatch out;
    out.batch.ids = at::tensor(ids_, at::kLong).to(options.device);
    out.batch.targets = at::tensor(targets_, at::kLong).to(options.device);
    out.batch.packing.positions = at::tensor(positions_, at::kInt).to(options.device);
    out.batch.packing.boundaries = boundaries_;
    out.batch.packing.lengths = lengths_;
    out.layout.mask = at::tensor(mask_, at::kByte).to(at::kBool).to(options.device);
    out.batch.learnt = out.layout.mask;
    out.layout.boundaries = boundaries_;
    out.spans = spans_;
    return out;
  }

 private:
  std::vector<int64_t> ids_, targets_;
  std::vector<int32_t> positions_;
  std::vector<uint8_t> mask_;
  std::vector<int64_t> boundaries_ = {0}, lengths_;
  std::vector<RlMicroBatch::Span> spans_;
};

}  // namespace

at::Tensor RlMicroBatch::Spread(std::span<const float> values) const {
  at::Tensor rows = at::zeros({batch.ids.size(0)}, at::kFloat);
  float* const out = rows.data_ptr<float>();
  for (const Span& span : spans) {
    TORCH_CHECK(span.held + span.size <= static_cast<int64_t>(values.size()),
                "a response's values end at ", span.held + span.size, " of ", values.size());
  }
  for (const Span& span : spans) std::copy_n(values.data() + span.held, span.size, out + span.at);
  return rows.to(batch.ids.device());
}

std::vector<RlMicroBatch> MakeRlMicroBatches(const BatchShare& share,
                                             std::span<const int64_t> update,
                                             const RlBatchOptions& options) {
  const std::vector<int64_t> mine =
      DealOut(share.outline(), update, options.dp)[static_cast<size_t>(options.dp_rank)];
  std::vector<RlMicroBatch> batches;
  for (size_t begin = 0; begin == 0 || begin < mine.size();) {
    const size_t end = std::min(mine.size(), begin + static_cast<size_t>(options.micro_batch_size));
    Packer packer;
    for (size_t i = begin; i < end; ++i) packer.Add(share.Of(mine[i]));
    batches.push_back(packer.Finish(options));
    begin = std::max(end, begin + 1);
  }
  return batches;
}

std::vector<model::ModelBatch> ModelBatchesOf(const std::vector<RlMicroBatch>& batches) {
  std::vector<model::ModelBatch> out;
  for (const RlMicroBatch& batch : batches) out.push_back(batch.batch);
  return out;
}

}  // namespace keel::trainer::rl
