#include "tools/eval/eval_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace keel::tools {

namespace {

constexpr double kZ = 1.959963984540054;  // of 95 %

struct Row {
  std::vector<Vote> votes;
  double score = 0;  // the sum
  int64_t right = 0;
};

Json JsonOf(const Estimate& estimate) {
  return {{"mean", estimate.mean},
          {"low", estimate.low ? Json(*estimate.low) : Json()},
          {"high", estimate.high ? Json(*estimate.high) : Json()},
          {"rows", estimate.rows}};
}

// Over the rows that have at least `least` samples.
template <typename Value>
Json Over(const std::map<int64_t, Row>& rows, int64_t least, bool share, const Value& value) {
  std::vector<double> values;
  for (const auto& [number, row] : rows)
    if (std::ssize(row.votes) >= least) values.push_back(value(row));
  return values.empty() ? Json() : JsonOf(EstimateOf(values, share));
}

Json SummaryOf(std::span<const ScoredSample* const> samples, int64_t n,
               std::span<const int64_t> ks) {
  std::map<int64_t, Row> rows;
  int64_t errors = 0, cut = 0;
  for (const ScoredSample* s : samples) {
    Row& row = rows[s->row];
    errors += s->failed;
    cut += s->cut;
    if (!s->counts) continue;
    row.votes.push_back({s->answer, s->right});
    row.score += s->score;
    row.right += s->right;
  }
  Json summary = {{"rows", rows.size()},
                  {"samples", samples.size()},
                  {"errors", errors},
                  {"cut_by_length", cut}};
  const auto size = [](const Row& row) { return static_cast<double>(row.votes.size()); };
  summary["mean_score"] =
      Over(rows, 1, false, [&](const Row& row) { return row.score / size(row); });
  summary[fmt::format("mean@{}", n)] = Over(
      rows, 1, true, [&](const Row& row) { return static_cast<double>(row.right) / size(row); });
  for (const int64_t k : ks) {
    summary[fmt::format("pass@{}", k)] = Over(rows, k, true, [&](const Row& row) {
      return PassAtK(std::ssize(row.votes), row.right, k);
    });
    summary[fmt::format("maj@{}", k)] =
        Over(rows, k, true, [&](const Row& row) { return MajorityAtK(row.votes, k); });
  }
  return summary;
}

}  // namespace

// C(n - c, k) / C(n, k) is the product of 1 - k / i for i in n - c + 1 .. n.
double PassAtK(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1;
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; ++i)
    none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

double MajorityAtK(std::span<const Vote> votes, int64_t k) {
  const auto size = static_cast<size_t>(k);
  size_t right = 0, draws = 0;
  for (size_t begin = 0; begin + size <= votes.size(); begin += size, ++draws) {
    const auto run = votes.subspan(begin, size);
    std::map<std::string, int64_t> counts;
    for (const Vote& vote : run)
      if (!vote.answer.empty()) ++counts[vote.answer];
    const auto count = [&](const Vote& vote) {
      return vote.answer.empty() ? 1 : counts[vote.answer];
    };
    const Vote* chosen = &run.front();
    for (const Vote& vote : run)
      if (count(vote) > count(*chosen)) chosen = &vote;
    right += chosen->right;
  }
  return static_cast<double>(right) / static_cast<double>(draws);
}

Estimate EstimateOf(std::span<const double> rows, bool share) {
  const auto count = static_cast<double>(rows.size());
  Estimate estimate;
  estimate.rows = std::ssize(rows);
  for (const double value : rows) estimate.mean += value / count;
  if (rows.size() < 2) return estimate;
  double squares = 0;
  for (const double value : rows) squares += (value - estimate.mean) * (value - estimate.mean);
  const bool all_equal =
      std::all_of(rows.begin(), rows.end(), [&](double value) { return value == rows.front(); });
  if (share && all_equal && (rows.front() == 0 || rows.front() == 1)) {
    const double inner = count / (count + kZ * kZ);
    estimate.mean = rows.front();
    estimate.low = rows.front() == 1 ? inner : 0;
    estimate.high = rows.front() == 1 ? 1 : 1 - inner;
    return estimate;
  }
  const double error = kZ * std::sqrt(squares / (count - 1) / count);
  estimate.low = estimate.mean - error;
  estimate.high = estimate.mean + error;
  if (share) {
    estimate.low = std::max(0.0, *estimate.low);
    estimate.high = std::min(1.0, *estimate.high);
  }
  return estimate;
}

Json Summarize(std::span<const ScoredSample> samples, int64_t n, std::span<const int64_t> ks) {
  std::vector<const ScoredSample*> all;
  for (const ScoredSample& sample : samples) all.push_back(&sample);
  std::sort(all.begin(), all.end(), [](const ScoredSample* a, const ScoredSample* b) {
    return std::pair(a->row, a->sample) < std::pair(b->row, b->sample);
  });
  std::map<std::string, std::vector<const ScoredSample*>> sources;
  for (const ScoredSample* sample : all) sources[sample->data_source].push_back(sample);
  Json by_source = Json::object();
  for (const auto& [source, of_it] : sources) by_source[source] = SummaryOf(of_it, n, ks);
  return {{"by_data_source", by_source}, {"all", SummaryOf(all, n, ks)}};
}

}  // namespace keel::tools
