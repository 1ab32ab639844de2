#include "trainer/rl/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "trainer/rl/batch_metrics.h"

namespace keel::trainer::rl {

namespace {

struct Group {
  std::vector<double> scores;
  std::map<std::string, std::pair<double, double>> extra;  // by name: sum, responses
  std::vector<std::string> answers;
};

// The mean over all choices of k of the values of their largest (sorted ascending): value i is it
// in C(i, k - 1) of C(n, k) choices.
double ExpectedLast(const std::vector<double>& sorted, size_t k) {
  const size_t n = sorted.size();
  double weight = static_cast<double>(k) / static_cast<double>(n);  // of the last
  double sum = 0;
  for (size_t i = n; i-- >= k;) {
    sum += weight * sorted[i];
    // C(i - 1, k - 1) / C(i, k - 1)
    if (i > 0) weight *= static_cast<double>(i + 1 - k) / static_cast<double>(i);
    if (i == 0) break;
  }
  return sum;
}

double Majority(const Group& group) {
  std::map<std::string, std::pair<int, size_t>> votes;  // count, first place
  for (size_t i = 0; i < group.answers.size(); ++i) {
    auto& vote = votes.try_emplace(group.answers[i], 0, i).first->second;
    ++vote.first;
  }
  size_t chosen = 0;
  int most = 0;
  for (const auto& [answer, vote] : votes) {
    if (vote.first > most || (vote.first == most && vote.second < chosen)) {
      most = vote.first;
      chosen = vote.second;
    }
  }
  return group.scores[chosen];
}

}  // namespace

double MeanScore(std::span<const Response> responses) {
  double sum = 0;
  for (const Response& r : responses) sum += r.score;
  return responses.empty() ? 0 : sum / static_cast<double>(responses.size());
}

StepLine ValidationMetrics(std::span<const Response> responses, int64_t n) {
  const auto whole = static_cast<size_t>(n);
  std::map<std::string, std::map<int64_t, Group>> sources;
  for (const Response& r : responses) {
    Group& group = sources[r.data_source][r.position];
    group.scores.push_back(r.score);
    for (const auto& [name, value] : r.extra) {
      if (!group.extra.contains(name) && group.extra.size() >= kMostRewardNames) continue;
      auto& [sum, count] = group.extra[name];
      sum += value;
      count += 1;
    }
    group.answers.push_back(r.answer.empty() ? "\n" + r.text : r.answer);  // never equal
  }
  StepLine metrics;
  for (const auto& [source, groups] : sources) {
    const std::string name = fmt::format("val-core/{}/reward/", source);
    std::map<std::string, std::pair<double, double>> sums;  // value, groups
    const auto add = [&](const std::string& what, double value) {
      auto& [sum, count] = sums[what];
      sum += value;
      count += 1;
    };
    for (const auto& [position, group] : groups) {
      const size_t there = group.scores.size();
      double mean = 0;
      for (const double score : group.scores) mean += score / static_cast<double>(there);
      add(fmt::format("mean@{}", whole), mean);
      if (whole == 1) continue;
      std::vector<double> sorted = group.scores;
      std::sort(sorted.begin(), sorted.end());
      std::vector<double> negated;
      for (auto it = sorted.rbegin(); it != sorted.rend(); ++it) negated.push_back(-*it);
      for (size_t k = 2;; k *= 2) {
        k = std::min(k, whole);
        if (k > there) break;
        add(fmt::format("best@{}", k), ExpectedLast(sorted, k));
        add(fmt::format("worst@{}", k), -ExpectedLast(negated, k));
        if (k == whole) break;
      }
      add(fmt::format("maj@{}", whole), Majority(group));
    }
    for (const auto& [what, sum] : sums) metrics.Set(name + what, sum.first / sum.second);
    // What verifiers gave beside the score.
    std::map<std::string, std::pair<double, double>> extra;
    for (const auto& [position, group] : groups) {
      for (const auto& [what, given] : group.extra) {
        auto& [sum, count] = extra[fmt::format("{}/mean@{}", Printable(what, 60), whole)];
        sum += given.first / given.second;
        count += 1;
      }
    }
    for (const auto& [what, sum] : extra)
      metrics.Set(fmt::format("val-aux/{}/{}", source, what), sum.first / sum.second);
  }
  return metrics;
}

}  // namespace keel::trainer::rl
