#include "trainer/algorithms/optimal_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/status.h"

namespace keel::trainer::rl {

namespace {

// An order of all values: what is no number comes last.
bool Below(double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); }

}  // namespace

std::vector<double> PartnersByRank(std::span<const double> values, std::span<const double> others) {
  if (values.size() != others.size()) {
    throw Error(StatusCode::kInternal,
                fmt::format("partners by rank: expected two samples of one size, found {} and {}",
                            values.size(), others.size()));
  }
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return Below(values[a], values[b]); });
  std::vector<double> sorted(others.begin(), others.end());
  std::sort(sorted.begin(), sorted.end(), Below);
  std::vector<double> partners(values.size());
  for (size_t rank = 0; rank < order.size(); ++rank) partners[order[rank]] = sorted[rank];
  return partners;
}

}  // namespace keel::trainer::rl
