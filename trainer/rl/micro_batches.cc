#include "trainer/rl/micro_batches.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "parallel/vocab_chunks.h"

namespace keel::trainer::rl {

namespace {

int64_t TokensOf(const Response& r) {
  return static_cast<int64_t>(r.prompt.size() + r.tokens.size());
}

// Longest first to whoever has least: shares differ by one response at most in what they hold.
std::vector<std::vector<int64_t>> Share(const RolloutBatch& batch, std::span<const int64_t> chosen,
                                        int dp) {
  std::vector<int64_t> order(chosen.begin(), chosen.end());
  const auto tokens = [&](int64_t i) { return TokensOf(batch.responses[static_cast<size_t>(i)]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tokens(a) > tokens(b); });
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(dp));
  std::vector<int64_t> load(static_cast<size_t>(dp), 0);
  for (const int64_t i : order) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[static_cast<size_t>(least)] += tokens(i);
    shares[static_cast<size_t>(least)].push_back(i);
  }
  for (auto& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

class Packer {
 public:
  void Add(const RolloutBatch& batch, int64_t index) {
    const Response& r = batch.responses[static_cast<size_t>(index)];
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    const auto size = static_cast<int64_t>(r.tokens.size());
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
    const int64_t first = batch.boundaries[static_cast<size_t>(index)];
    spans_.push_back({first, begin + prompt - 1, size});
    mask_.resize(ids_.size(), 0);
    for (int64_t t = 0; t < size; ++t)
      mask_[static_cast<size_t>(begin + prompt - 1 + t)] =
          batch.mask[static_cast<size_t>(first + t)];
    boundaries_.push_back(static_cast<int64_t>(ids_.size()));
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
    }
    RlMicroBatch out;
    out.batch.ids = at::tensor(ids_, at::kLong).to(options.device);
    out.batch.targets = at::tensor(targets_, at::kLong).to(options.device);
    out.batch.packing.positions = at::tensor(positions_, at::kInt).to(options.device);
    out.batch.packing.boundaries = boundaries_;
    out.layout.mask = at::tensor(mask_, at::kByte).to(at::kBool).to(options.device);
    out.layout.boundaries = boundaries_;
    out.spans = spans_;
    return out;
  }

 private:
  std::vector<int64_t> ids_, targets_;
  std::vector<int32_t> positions_;
  std::vector<uint8_t> mask_;
  std::vector<int64_t> boundaries_ = {0};
  std::vector<RlMicroBatch::Span> spans_;
};

}  // namespace

at::Tensor RlMicroBatch::Spread(std::span<const float> values) const {
  at::Tensor rows = at::zeros({batch.ids.size(0)}, at::kFloat);
  float* const out = rows.data_ptr<float>();
  for (const Span& span : spans) {
    TORCH_CHECK(span.begin + span.size <= static_cast<int64_t>(values.size()),
                "a response's values end at ", span.begin + span.size, " of ", values.size());
  }
  for (const Span& span : spans) std::copy_n(values.data() + span.begin, span.size, out + span.at);
  return rows.to(batch.ids.device());
}

std::vector<RlMicroBatch> MakeRlMicroBatches(const RolloutBatch& batch,
                                             std::span<const int64_t> chosen,
                                             const RlBatchOptions& options) {
  // An empty response teaches nothing, and has no place for a value.
  std::vector<int64_t> used;
  for (const int64_t i : chosen)
    if (!batch.responses[static_cast<size_t>(i)].tokens.empty()) used.push_back(i);
  const auto share = Share(batch, used, options.dp)[static_cast<size_t>(options.dp_rank)];
  std::vector<RlMicroBatch> batches;
  for (size_t begin = 0; begin == 0 || begin < share.size();) {
    const size_t end =
        std::min(share.size(), begin + static_cast<size_t>(options.micro_batch_size));
    Packer packer;
    for (size_t i = begin; i < end; ++i) packer.Add(batch, share[i]);
    batches.push_back(packer.Finish(options));
    begin = std::max(end, begin + 1);
  }
  return batches;
}

LossDenominators DenominatorsOf(const RolloutBatch& batch, std::span<const int64_t> chosen,
                                double scale_factor) {
  LossDenominators result;
  result.scale_factor = scale_factor;
  const PackedView view = batch.packed();
  for (const int64_t i : chosen) {
    const int64_t tokens = PolicyTokens(view, static_cast<size_t>(i));
    result.tokens += tokens;
    result.sequences += tokens > 0;
  }
  return result;
}

std::vector<model::ModelBatch> ModelBatchesOf(const std::vector<RlMicroBatch>& batches) {
  std::vector<model::ModelBatch> out;
  for (const RlMicroBatch& batch : batches) out.push_back(batch.batch);
  return out;
}

}  // namespace keel::trainer::rl
