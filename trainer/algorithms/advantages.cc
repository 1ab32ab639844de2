#include "trainer/algorithms/advantages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace keel::trainer::rl {

namespace {

constexpr double kGroupEpsilon = 1e-6;
constexpr double kWhitenEpsilon = 1e-8;
constexpr double kBaselineEpsilon = 1e-8;

void NeedLength(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw Error(StatusCode::kInternal,
              fmt::format("advantages: expected {} {}, found {}", expected, what, found));
}

// Calls body(t, reward) for the policy's tokens of sequence s from the last to the first, each with
// the rewards of the masked tokens behind it; the first one also with those of masked tokens
// before.
template <typename Body>
void BackwardOverPolicyTokens(const AdvantageInputs& in, size_t s, Body&& body) {
  const PackedView& view = in.responses;
  size_t first = view.begin(s);
  double leading = 0;
  for (; first < view.end(s) && view.mask[first] == 0; ++first) leading += in.rewards[first];
  double pending = 0;
  for (size_t t = view.end(s); t-- > first;) {
    pending += in.rewards[t];
    if (view.mask[t] == 0) continue;
    body(t, t == first ? pending + leading : pending);
    pending = 0;
  }
}

// (x - mean) / sqrt(variance + 1e-8) over the policy's tokens of the batch; variance with n - 1.
void Whiten(const PackedView& view, std::vector<double>& x) {
  double sum = 0;
  int64_t count = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    if (view.mask[t] == 0) continue;
    sum += x[t];
    ++count;
  }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    if (view.mask[t] != 0) squares += (x[t] - mean) * (x[t] - mean);
  }
  const double variance = count > 1 ? squares / static_cast<double>(count - 1) : 0;
  const double scale = 1 / std::sqrt(variance + kWhitenEpsilon);
  for (size_t t = 0; t < x.size(); ++t) x[t] = view.mask[t] != 0 ? (x[t] - mean) * scale : 0;
}

struct Group {
  int64_t members = 0;         // also those that do not count
  std::vector<double> scores;  // of those that do
  std::vector<double> lengths;
  double mean = 0;           // a prompt's only response: 0
  double mean_by_token = 0;  // the same with a response's length for its weight
  double deviation = 1;      // n - 1; of one: 1

  // Of the scores: the largest, and the largest of the others.
  std::pair<double, double> TopTwo() const {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    double best = kNone, second = kNone;
    for (const double score : scores) {
      second = std::max(second, std::min(best, score));
      best = std::max(best, score);
    }
    return {best, second};
  }
};

struct Scored {
  std::vector<double> scores;  // [S]
  std::vector<bool> counts;    // has a token of the policy
  std::map<int64_t, Group> groups;
};

std::vector<double> ScoresOf(const AdvantageInputs& in) {
  std::vector<double> scores(in.responses.sequences());
  for (size_t s = 0; s < scores.size(); ++s) {
    for (size_t t = in.responses.begin(s); t < in.responses.end(s); ++t) scores[s] += in.rewards[t];
  }
  return scores;
}

Scored ScoreGroups(const AdvantageInputs& in, std::vector<double> scores) {
  const PackedView& view = in.responses;
  Scored out;
  out.scores = std::move(scores);
  for (size_t s = 0; s < view.sequences(); ++s) {
    const int64_t tokens = PolicyTokens(view, s);
    out.counts.push_back(tokens > 0);
    Group& group = out.groups[in.groups[s]];
    ++group.members;
    if (!out.counts.back()) continue;
    group.scores.push_back(out.scores[s]);
    group.lengths.push_back(static_cast<double>(tokens));
  }
  for (auto& [id, group] : out.groups) {
    const auto n = static_cast<double>(group.scores.size());
    if (group.scores.empty() || group.members == 1) continue;
    double tokens = 0;
    for (size_t i = 0; i < group.scores.size(); ++i) {
      group.mean += group.scores[i];
      group.mean_by_token += group.lengths[i] * group.scores[i];
      tokens += group.lengths[i];
    }
    group.mean /= n;
    group.mean_by_token /= tokens;
    if (group.scores.size() == 1) continue;  // the last one left: its mean is its score
    double squares = 0;
    for (const double score : group.scores) squares += (score - group.mean) * (score - group.mean);
    group.deviation = std::sqrt(squares / (n - 1));
  }
  return out;
}

// The same value on each token of the policy in sequence s.
void Spread(const PackedView& view, size_t s, double value, std::vector<double>& out) {
  for (size_t t = view.begin(s); t < view.end(s); ++t) out[t] = view.mask[t] != 0 ? value : 0;
}

void Gae(const AdvantageInputs& in, const AdvantageOptions& options,
         std::vector<double>& advantages, std::vector<double>& returns) {
  for (size_t s = 0; s < in.responses.sequences(); ++s) {
    double next_value = 0;
    double advantage = 0;
    BackwardOverPolicyTokens(in, s, [&](size_t t, double reward) {
      const double delta = reward + options.gamma * next_value - in.values[t];
      advantage = delta + options.gamma * options.lam * advantage;
      next_value = in.values[t];
      advantages[t] = advantage;
      returns[t] = advantage + in.values[t];
    });
  }
}

void ReinforcePlusPlus(const AdvantageInputs& in, const AdvantageOptions& options,
                       std::vector<double>& advantages, std::vector<double>& returns) {
  for (size_t s = 0; s < in.responses.sequences(); ++s) {
    double running = 0;
    BackwardOverPolicyTokens(in, s, [&](size_t t, double reward) {
      running = reward + options.gamma * running;
      returns[t] = running;
    });
  }
  advantages = returns;
}

void Remax(const AdvantageInputs& in, std::vector<double>& advantages,
           std::vector<double>& returns) {
  for (size_t s = 0; s < in.responses.sequences(); ++s) {
    double running = 0;
    BackwardOverPolicyTokens(in, s, [&](size_t t, double reward) {
      running += reward;
      returns[t] = running;
      advantages[t] = running - in.baselines[s];
    });
  }
}

// Estimators that give a response one advantage from its group's scores.
void FromGroups(const AdvantageInputs& in, const AdvantageOptions& options,
                std::vector<double>& advantages) {
  const Scored scored = ScoreGroups(in, ScoresOf(in));
  double nonzero = 0;
  double responses = 0;
  for (size_t s = 0; s < scored.scores.size(); ++s) {
    if (!scored.counts[s]) continue;
    responses += 1;
    nonzero += scored.scores[s] != 0;
  }
  for (size_t s = 0; s < scored.scores.size(); ++s) {
    if (!scored.counts[s]) continue;
    const Group& group = scored.groups.at(in.groups[s]);
    const auto n = static_cast<double>(group.scores.size());
    double value = scored.scores[s] - group.mean;
    switch (options.estimator) {
      case AdvantageEstimator::kGrpo:
      case AdvantageEstimator::kGrpoVectorized:
        if (options.norm_adv_by_std_in_grpo) value /= group.deviation + kGroupEpsilon;
        break;
      case AdvantageEstimator::kRloo:
      case AdvantageEstimator::kRlooVectorized:
        // The mean of the others is the baseline; a group of one keeps its score, or has none.
        if (n > 1) value *= n / (n - 1);
        if (n == 1 && options.estimator == AdvantageEstimator::kRlooVectorized) value = 0;
        break;
      case AdvantageEstimator::kOpo:
        // A score is its own mean where it is the only one left.
        value = n > 1 || group.members == 1 ? scored.scores[s] - group.mean_by_token : 0;
        break;
      case AdvantageEstimator::kGrpoPassk: {
        if (group.members == 1) {
          throw Error(StatusCode::kInternal,
                      fmt::format("advantages: grpo_passk expects two responses or more of each "
                                  "prompt, found one in group {}",
                                  in.groups[s]));
        }
        // Of the best alone; where two are the best, 0.
        const auto [best, second] = n > 1 ? group.TopTwo() : std::pair(0.0, 0.0);
        value = n > 1 && scored.scores[s] == best ? best - second : 0;
        if (options.norm_adv_by_std_in_grpo) value /= group.deviation + kGroupEpsilon;
        break;
      }
      case AdvantageEstimator::kGpg:
        value *= responses / std::max(1.0, nonzero);
        break;
      default:
        break;
    }
    Spread(in.responses, s, value, advantages);
  }
}

// GRPO's advantage for each reward by itself, weighted and added up.
void FromComponents(const AdvantageInputs& in, const AdvantageOptions& options,
                    std::vector<double>& advantages) {
  std::vector<double> sums(in.responses.sequences());
  for (size_t k = 0; k < in.components.size(); ++k) {
    const Scored scored = ScoreGroups(in, in.components[k]);
    const double weight = options.component_weights.empty() ? 1 : options.component_weights[k];
    for (size_t s = 0; s < sums.size(); ++s) {
      const Group& group = scored.groups.at(in.groups[s]);
      double value = scored.scores[s] - group.mean;
      if (options.norm_adv_by_std_in_grpo) value /= group.deviation + kGroupEpsilon;
      sums[s] += weight * value;
    }
  }
  for (size_t s = 0; s < sums.size(); ++s) Spread(in.responses, s, sums[s], advantages);
}

// A response in the optimal token baseline: places with the return from there on, and how far the
// path up to there may have moved the policy, W = the sum of 1 - 2 pi + sum(pi^2) over its tokens.
struct Path {
  size_t sequence = 0;
  std::vector<size_t> tokens;           // of its places, one after another
  std::vector<double> returns, energy;  // of each place
  std::vector<bool> counts;             // the place's token is the policy's
  size_t policy_tokens = 0;
};

// 1 - 2 pi + sum(pi^2), which is (1 - pi)^2 and more. Of a token that was all but certain nothing
// is left but what both numbers, in fp32 near 1, were rounded by, of either sign: weights of noise
// that cancel each other would make a baseline of any size.
double EnergyOf(float log_prob, float sum_pi_squared) {
  constexpr double kRounded = 1e-5;  // at most
  const double all_but = std::expm1(static_cast<double>(log_prob));
  const double found = 1 - 2 * (1 + all_but) + sum_pi_squared;
  const double least = all_but * all_but;
  return found < least && found > least - kRounded ? least : found;
}

// The place of a token is its distance from the response's first, or, of the policy's tokens alone,
// its number among them.
Path PathOf(const AdvantageInputs& in, size_t s, bool policy_tokens_only,
            std::vector<double>& returns) {
  const PackedView& view = in.responses;
  double running = 0;
  BackwardOverPolicyTokens(in, s, [&](size_t t, double reward) {
    running += reward;
    returns[t] = running;
  });
  Path path;
  path.sequence = s;
  double energy = 0;
  for (size_t t = view.begin(s); t < view.end(s); ++t) {
    const bool counts = view.mask[t] != 0;
    if (counts) {
      const double weight =
          in.rollout_is_weights.empty() ? 1 : static_cast<double>(in.rollout_is_weights[t]);
      energy += EnergyOf(in.log_probs[t], in.sum_pi_squared[t]) * weight * weight;
      ++path.policy_tokens;
    } else if (policy_tokens_only) {
      continue;
    }
    path.tokens.push_back(t);
    path.returns.push_back(counts ? returns[t] : 0);
    path.energy.push_back(counts ? energy : 0);
    path.counts.push_back(counts);
  }
  return path;
}

// For each place of a group's responses the mean of their returns from there on, weighted by W
// (verl's compute_optimal_token_baseline_advantage). Where the longest response goes on alone,
// there is nothing to compare with, and its return is its advantage.
void OptimalTokenBaseline(const AdvantageInputs& in, bool policy_tokens_only,
                          std::vector<double>& advantages, std::vector<double>& returns) {
  const PackedView& view = in.responses;
  std::map<int64_t, std::vector<Path>> groups;
  std::map<int64_t, int64_t> members;
  for (size_t s = 0; s < view.sequences(); ++s) {
    ++members[in.groups[s]];
    Path path = PathOf(in, s, policy_tokens_only, returns);
    if (path.policy_tokens > 0) groups[in.groups[s]].push_back(std::move(path));
  }
  for (const auto& [id, paths] : groups) {
    if (paths.size() == 1) {
      // The last one of several has nothing to be compared with, and an advantage of 0.
      for (const size_t t : paths[0].tokens) {
        if (view.mask[t] != 0) advantages[t] = members[id] == 1 ? returns[t] : 0;
      }
      continue;
    }
    size_t places = 0, longest = 0, second = 0;
    for (const Path& path : paths) {
      places = std::max(places, path.tokens.size());
      second = std::max(second, std::min(longest, path.policy_tokens));
      longest = std::max(longest, path.policy_tokens);
    }
    std::vector<double> baseline(places);
    for (size_t place = 0; place < places; ++place) {
      double weighted = 0, weights = kBaselineEpsilon;
      for (const Path& path : paths) {
        if (place >= path.tokens.size() || !path.counts[place]) continue;
        weighted += path.returns[place] * path.energy[place];
        weights += path.energy[place];
      }
      baseline[place] = weighted / weights;
    }
    for (const Path& path : paths) {
      for (size_t place = 0; place < path.tokens.size(); ++place) {
        if (!path.counts[place]) continue;
        const bool alone = path.policy_tokens == longest && longest > second && place >= second;
        advantages[path.tokens[place]] = path.returns[place] - (alone ? 0 : baseline[place]);
      }
    }
  }
}

}  // namespace

Advantages ComputeAdvantages(const AdvantageInputs& in, const AdvantageOptions& options) {
  CheckPacked(in.responses);
  const AdvantageTraits traits = TraitsOf(options.estimator);
  const size_t tokens = in.responses.tokens();
  const size_t sequences = in.responses.sequences();
  NeedLength("rewards", in.rewards.size(), tokens);
  if (traits.groups) NeedLength("groups", in.groups.size(), sequences);
  if (traits.values) NeedLength("values", in.values.size(), tokens);
  if (traits.greedy_baseline) NeedLength("baselines", in.baselines.size(), sequences);
  if (traits.sum_pi_squared) {
    NeedLength("log-probabilities", in.log_probs.size(), tokens);
    NeedLength("sums of squared probabilities", in.sum_pi_squared.size(), tokens);
    if (!in.rollout_is_weights.empty())
      NeedLength("rollout_is_weights", in.rollout_is_weights.size(), tokens);
  }
  if (traits.components) {
    NeedLength("kinds of rewards", in.components.size(),
               options.component_weights.empty() ? std::max<size_t>(1, in.components.size())
                                                 : options.component_weights.size());
    for (const std::vector<double>& component : in.components)
      NeedLength("rewards of a kind", component.size(), sequences);
  }
  std::vector<double> advantages(tokens);
  std::vector<double> returns(tokens);
  switch (options.estimator) {
    case AdvantageEstimator::kGae:
      Gae(in, options, advantages, returns);
      break;
    case AdvantageEstimator::kReinforcePlusPlus:
      ReinforcePlusPlus(in, options, advantages, returns);
      break;
    case AdvantageEstimator::kRemax:
      Remax(in, advantages, returns);
      break;
    case AdvantageEstimator::kGdpo:
      FromComponents(in, options, advantages);
      break;
    case AdvantageEstimator::kOptimalTokenBaseline:
    case AdvantageEstimator::kTirOptimalTokenBaseline:
      OptimalTokenBaseline(in, options.estimator == AdvantageEstimator::kTirOptimalTokenBaseline,
                           advantages, returns);
      break;
    default:
      FromGroups(in, options, advantages);
  }
  if (traits.whitened) Whiten(in.responses, advantages);
  if (traits.groups && !traits.sum_pi_squared) returns = advantages;
  return {{advantages.begin(), advantages.end()}, {returns.begin(), returns.end()}};
}

std::vector<float> PlaceScores(const PackedView& responses, std::span<const double> scores) {
  CheckPacked(responses);
  NeedLength("scores", scores.size(), responses.sequences());
  std::vector<float> rewards(responses.tokens(), 0.0f);
  for (size_t s = 0; s < responses.sequences(); ++s) {
    for (size_t t = responses.end(s); t-- > responses.begin(s);) {
      if (responses.mask[t] == 0) continue;
      rewards[t] = static_cast<float>(scores[s]);
      break;
    }
  }
  return rewards;
}

}  // namespace keel::trainer::rl
