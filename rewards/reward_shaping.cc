#include "rewards/reward_shaping.h"

#include <algorithm>
#include <map>

namespace keel::rewards {

double OverlongPenalty(int64_t response_tokens, int64_t max_response_length, int64_t buffer,
                       double factor) {
  if (buffer <= 0) return 0;
  const int64_t beyond = response_tokens - (max_response_length - buffer);
  if (beyond <= 0) return 0;
  return -factor * static_cast<double>(beyond) / static_cast<double>(buffer);
}

std::vector<uint8_t> KeepInformativeGroups(std::span<const int64_t> groups,
                                           std::span<const double> metric,
                                           std::span<const uint8_t> counted) {
  struct Range {
    double low = 0;
    double high = 0;
    int64_t counted = 0;
    int64_t size = 0;
  };
  std::map<int64_t, Range> ranges;
  for (size_t i = 0; i < groups.size(); ++i) {
    Range& range = ranges[groups[i]];
    ++range.size;
    if (!counted.empty() && counted[i] == 0) continue;
    range.low = range.counted == 0 ? metric[i] : std::min(range.low, metric[i]);
    range.high = range.counted == 0 ? metric[i] : std::max(range.high, metric[i]);
    ++range.counted;
  }
  std::vector<uint8_t> keep;
  for (const int64_t group : groups) {
    const Range& range = ranges.at(group);
    const bool alone = range.size == 1 && range.counted == 1;
    keep.push_back(alone || range.low < range.high);
  }
  return keep;
}

SamplingDecision DecideSampling(int64_t kept_groups, int64_t wanted_groups,
                                int64_t generated_batches, int64_t max_num_gen_batches) {
  if (kept_groups >= wanted_groups) return SamplingDecision::kEnough;
  if (max_num_gen_batches > 0 && generated_batches >= max_num_gen_batches)
    return SamplingDecision::kGiveUp;
  return SamplingDecision::kGenerate;
}

}  // namespace keel::rewards
