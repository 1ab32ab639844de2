#include "trainer/algorithms/covariance_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/status.h"
#include "common/philox.h"

namespace keel::trainer::rl {

namespace {

constexpr uint64_t kCovarianceStream = 0x636f7661;  // "cova"

struct Candidate {
  double rank = 0;  // smaller ones are chosen first
  size_t token = 0;
};

// Of n candidates `count`, those of the lowest rank, of equal ones those that come first.
void Mark(std::vector<Candidate>& candidates, size_t count, std::vector<uint8_t>& chosen) {
  count = std::min(count, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
                    candidates.end(), [](const Candidate& a, const Candidate& b) {
                      return std::pair(a.rank, a.token) < std::pair(b.rank, b.token);
                    });
  for (size_t i = 0; i < count; ++i) chosen[candidates[i].token] = 1;
}

size_t Share(double ratio, size_t tokens) {
  return std::max<size_t>(1, static_cast<size_t>(ratio * static_cast<double>(tokens)));
}

}  // namespace

std::vector<uint8_t> ChooseByCovariance(PolicyLossMode mode, const CovarianceInputs& in,
                                        double clip_ratio_low, double clip_ratio_high,
                                        const CovarianceOptions& options,
                                        const CovarianceDraw& draw) {
  const size_t n = in.mask.size();
  if (in.log_probs.size() != n || in.advantages.size() != n || in.old_log_probs.size() != n) {
    throw Error(StatusCode::kInternal,
                fmt::format("choice by covariance: expected {} tokens, found {} log-probabilities, "
                            "{} old ones and {} advantages",
                            n, in.log_probs.size(), in.old_log_probs.size(), in.advantages.size()));
  }
  std::vector<uint8_t> chosen(n);

  // 1. The means over the policy's tokens.
  double advantages = 0, log_probs = 0;
  size_t tokens = 0;
  for (const int64_t at : in.tokens) {
    const auto t = static_cast<size_t>(at);
    if (in.mask[t] == 0) continue;
    advantages += in.advantages[t];
    log_probs += in.log_probs[t];
    ++tokens;
  }
  if (tokens == 0) return chosen;
  advantages /= static_cast<double>(tokens);
  log_probs /= static_cast<double>(tokens);

  // 2. Who may be chosen, in which order.
  const Philox rng(draw.seed, kCovarianceStream + static_cast<uint64_t>(draw.step));
  const uint64_t base = static_cast<uint64_t>(draw.epoch) << 32;
  std::vector<Candidate> candidates;
  for (const int64_t at : in.tokens) {
    const auto t = static_cast<size_t>(at);
    if (in.mask[t] == 0) continue;
    const double advantage = in.advantages[t];
    const double covariance = (advantage - advantages) * (in.log_probs[t] - log_probs);
    if (mode == PolicyLossMode::kKlCov) {
      candidates.push_back({-covariance, t});
      continue;
    }
    const double ratio =
        std::exp(static_cast<double>(in.log_probs[t]) - static_cast<double>(in.old_log_probs[t]));
    const double bounded = std::clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high);
    const bool clipped = -advantage * bounded > -advantage * ratio;
    if (clipped || covariance >= options.clip_cov_ub || covariance <= options.clip_cov_lb) continue;
    candidates.push_back({rng.Uniform(base + t), t});
  }

  // 3. How many.
  const double ratio =
      mode == PolicyLossMode::kKlCov ? options.kl_cov_ratio : options.clip_cov_ratio;
  Mark(candidates, Share(ratio, tokens), chosen);
  return chosen;
}

}  // namespace keel::trainer::rl
