#include "trainer/algorithms/entropy_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/status.h"

namespace keel::trainer::rl {

namespace {

constexpr float kSameEntropy = 1e-6f;  // of an entropy: a difference that is one of rounding

}  // namespace

std::vector<uint8_t> ChooseByEntropy(std::span<const float> entropies,
                                     std::span<const uint8_t> mask, std::span<const int64_t> tokens,
                                     double share) {
  if (entropies.size() != mask.size()) {
    throw Error(StatusCode::kInternal,
                fmt::format("choice by entropy: expected {} tokens, found {} entropies",
                            mask.size(), entropies.size()));
  }
  std::vector<uint8_t> chosen(mask.size());
  std::vector<float> sorted;
  for (const int64_t at : tokens) {
    const auto t = static_cast<size_t>(at);
    if (mask[t] != 0) sorted.push_back(entropies[t]);
  }
  if (sorted.empty()) return chosen;
  std::sort(sorted.begin(), sorted.end(), [](float a, float b) {
    return a < b || (std::isnan(b) && !std::isnan(a));  // what is no number comes last
  });

  // Rounded to the entropies' own fp32: a token that the quantile falls on is not lost to the
  // rounding of its place.
  const double place = (1 - share) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const auto threshold = static_cast<float>(
      sorted[below] + (place - static_cast<double>(below)) * (static_cast<double>(sorted[above]) -
                                                              static_cast<double>(sorted[below])));
  // Tokens of one context, such as the first ones of a prompt's responses, have one entropy, which
  // comes out of batches of different make-up with other last bits. Of entropies that are not tiny
  // these differ by less than this, and they are chosen together.
  const float slack = kSameEntropy * std::abs(threshold);
  for (const int64_t at : tokens) {
    const auto t = static_cast<size_t>(at);
    chosen[t] = mask[t] != 0 && !(entropies[t] < threshold - slack);
  }
  return chosen;
}

}  // namespace keel::trainer::rl
