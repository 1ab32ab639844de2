#include "trainer/algorithms/loss_aggregation.h"

#include <algorithm>

namespace keel::trainer::rl {

namespace {

std::vector<int64_t> LengthsBetween(const std::vector<int64_t>& boundaries) {
  std::vector<int64_t> lengths;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s)
    lengths.push_back(boundaries[s + 1] - boundaries[s]);
  return lengths;
}

}  // namespace

at::Tensor TokenLayout::Counted(const at::Tensor& tokens) const {
  return at::where(mask, tokens, at::zeros({}, tokens.options()));
}

at::Tensor TokenLayout::SequenceSums(const at::Tensor& tokens) const {
  // Piece by piece, so that a sequence's sum does not depend on what it is packed with.
  std::vector<at::Tensor> sums;
  for (const at::Tensor& piece : Counted(tokens).split_with_sizes(LengthsBetween(boundaries)))
    sums.push_back(piece.sum());
  return sums.empty() ? tokens.narrow(0, 0, 0) : at::stack(sums);
}

at::Tensor TokenLayout::SequenceMaxima(const at::Tensor& tokens) const {
  std::vector<at::Tensor> maxima;
  const at::Tensor none = at::zeros({1}, tokens.options());
  for (const at::Tensor& piece : Counted(tokens).split_with_sizes(LengthsBetween(boundaries)))
    maxima.push_back(at::cat({piece, none}).max());
  return maxima.empty() ? tokens.narrow(0, 0, 0) : at::stack(maxima);
}

at::Tensor TokenLayout::Spread(const at::Tensor& sequences) const {
  const at::Tensor lengths = at::tensor(LengthsBetween(boundaries), at::kLong);
  return at::repeat_interleave(sequences, lengths.to(sequences.device()));
}

at::Tensor TokenLayout::Lengths() const { return SequenceSums(mask.to(at::kFloat)); }

at::Tensor LossWeights(const TokenLayout& layout, LossAggregation mode,
                       const LossDenominators& denominators) {
  const at::NoGradGuard no_grad;
  const at::Tensor ones = layout.mask.to(at::kFloat);
  const auto sequences = static_cast<double>(std::max<int64_t>(1, denominators.sequences));
  switch (mode) {
    case LossAggregation::kTokenMean:
      return ones / static_cast<double>(std::max<int64_t>(1, denominators.tokens));
    case LossAggregation::kTokenSum:
      return ones;
    case LossAggregation::kSeqMeanTokenSum:
      return ones / sequences;
    case LossAggregation::kSeqMeanTokenMean:
      return ones / (layout.Spread(layout.Lengths().clamp_min(1)) * sequences);
    case LossAggregation::kSeqMeanTokenSumNorm:
      break;
  }
  return ones / (sequences * denominators.scale_factor);
}

at::Tensor WeightedSum(const at::Tensor& loss, const at::Tensor& weights) {
  return (loss.to(at::kDouble) * weights).sum().to(at::kFloat);
}

}  // namespace keel::trainer::rl
