#include "trainer/algorithms/advantages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace keel::trainer::rl {

namespace {

constexpr double kGroupEpsilon = 1e-6;
constexpr double kWhitenEpsilon = 1e-8;

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
  double mean = 0;             // a prompt's only response: 0
  double deviation = 1;        // n - 1; of one: 1
};

struct Scored {
  std::vector<double> scores;  // [S]
  std::vector<bool> counts;    // has a token of the policy
  std::map<int64_t, Group> groups;
};

Scored ScoreGroups(const AdvantageInputs& in) {
  const PackedView& view = in.responses;
  Scored out;
  for (size_t s = 0; s < view.sequences(); ++s) {
    double score = 0;
    for (size_t t = view.begin(s); t < view.end(s); ++t) score += in.rewards[t];
    out.scores.push_back(score);
    out.counts.push_back(PolicyTokens(view, s) > 0);
    Group& group = out.groups[in.groups[s]];
    ++group.members;
    if (out.counts.back()) group.scores.push_back(score);
  }
  for (auto& [id, group] : out.groups) {
    const auto n = static_cast<double>(group.scores.size());
    if (group.scores.empty() || group.members == 1) continue;
    for (const double score : group.scores) group.mean += score;
    group.mean /= n;
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
  const Scored scored = ScoreGroups(in);
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
        if (options.norm_adv_by_std_in_grpo) value /= group.deviation + kGroupEpsilon;
        break;
      case AdvantageEstimator::kRloo:
        // The mean of the others is the baseline; a group of one keeps its score.
        if (n > 1) value *= n / (n - 1);
        break;
      case AdvantageEstimator::kGpg:
        value *= responses / std::max(1.0, nonzero);
        break;
      default:
        break;
    }
    Spread(in.responses, s, value, advantages);
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
    default:
      FromGroups(in, options, advantages);
  }
  if (traits.whitened) Whiten(in.responses, advantages);
  if (traits.groups) returns = advantages;
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
