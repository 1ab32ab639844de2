#include "trainer/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keel::trainer {

Mixture::Mixture(std::span<const double> weights)
    : shares_(weights.size()), given_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  int64_t left = kUnits;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double units = weights[i] / sum * static_cast<double>(kUnits);
    shares_[i] = std::clamp<int64_t>(std::llround(units), 1, kUnits);
    left -= shares_[i];
  }
  // What rounding has left over is less than a unit a source; the largest share does not feel it.
  *std::max_element(shares_.begin(), shares_.end()) += left;
}

Mixture::Draw Mixture::At(int64_t k) {
  if (k < next_ - 1) {
    std::fill(given_.begin(), given_.end(), 0);
    next_ = 0;
  }
  while (next_ <= k) last_ = Next();
  return last_;
}

// With n sources, c = 1 - 1 / (2n - 2) and s_i the share of source i: of the sources that may give
// the k-th sample without being more than c ahead, k s_i - given_i >= 1 - c, the one gives it that
// would first be more than c behind if it did not: least (given_i + c) / s_i. All is multiplied by
// 2n - 2 and by kUnits, so that numbers are whole: 128 bits hold the products of any two.
Mixture::Draw Mixture::Next() {
  using Wide = __int128;
  const auto sources = static_cast<Wide>(shares_.size());
  const int64_t k = ++next_;
  if (sources == 1) return {0, given_[0]++};
  const Wide factor = 2 * sources - 2;
  size_t best = 0;
  Wide best_due = 0;
  bool any = false;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Wide ahead =
        factor * (static_cast<Wide>(k) * shares_[i] - static_cast<Wide>(given_[i]) * kUnits);
    if (ahead < kUnits) continue;
    // (given_i + c) / s_i against that of the best, crosswise.
    const Wide due = factor * given_[i] + factor - 1;
    if (!any || due * shares_[best] < best_due * shares_[i]) {
      any = true;
      best = i;
      best_due = due;
    }
  }
  return {best, given_[best]++};
}

}  // namespace keel::trainer
