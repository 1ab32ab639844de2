// Sorting two samples and putting them side by side: how DPO's `aot` losses compare distributions
// instead of pairs (Melnyk et al. 2024, arXiv 2406.05882). Pure, thread-safe, torch-free.
#pragma once

#include <span>
#include <vector>

namespace keel::trainer::rl {

// For each of `values` that of `others` with the same rank; of equal values the first is the
// smaller. Throws Error(kInternal) unless there are as many.
std::vector<double> PartnersByRank(std::span<const double> values, std::span<const double> others);

}  // namespace keel::trainer::rl
