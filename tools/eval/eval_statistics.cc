#include "tools/eval/eval_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace keel::tools {

namespace {

constexpr double kZ = 1.959963984540054;  // of 95 %

Json JsonOf(const Estimate& estimate) {
  return {{"mean", estimate.mean},
          {"low", estimate.low ? Json(*estimate.low) : Json()},
          {"high", estimate.high ? Json(*estimate.high) : Json()},
          {"rows", estimate.rows}};
}

// Null where there is no row.
Json Over(const std::vector<double>& rows, bool share) {
  return rows.empty() ? Json() : JsonOf(EstimateOf(rows, share));
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

void EvalSummary::Add(ScoredSample sample) {
  if (!row_.empty() && row_.front().row != sample.row) EndRow();
  row_.push_back(std::move(sample));
  const ScoredSample& added = row_.back();
  for (Part* part : {&all_, &by_source_[added.data_source]}) {
    ++part->samples;
    part->errors += added.failed;
    part->cut += added.cut;
  }
}

void EvalSummary::EndRow() {
  AddRow(row_, &all_);
  // A row has one source.
  AddRow(row_, &by_source_[row_.front().data_source]);
  row_.clear();
}

void EvalSummary::AddRow(std::span<const ScoredSample> samples, Part* part) const {
  ++part->rows;
  std::vector<Vote> votes;
  double score = 0;
  int64_t right = 0;
  for (const ScoredSample& sample : samples) {
    if (!sample.counts) continue;
    votes.push_back({sample.answer, sample.right});
    score += sample.score;
    right += sample.right;
  }
  const int64_t count = std::ssize(votes);
  if (count == 0) return;
  part->scores.push_back(score / static_cast<double>(count));
  part->right.push_back(static_cast<double>(right) / static_cast<double>(count));
  for (const int64_t k : ks_) {
    if (count < k) continue;
    part->pass[k].push_back(PassAtK(count, right, k));
    part->majority[k].push_back(MajorityAtK(votes, k));
  }
}

Json EvalSummary::JsonOf(const Part& part) const {
  Json json = {{"rows", part.rows},
               {"samples", part.samples},
               {"errors", part.errors},
               {"cut_by_length", part.cut}};
  json["mean_score"] = Over(part.scores, false);
  json[fmt::format("mean@{}", n_)] = Over(part.right, true);
  static const std::vector<double> kNone;
  const auto of = [](const auto& by_k, int64_t k) -> const std::vector<double>& {
    const auto found = by_k.find(k);
    return found == by_k.end() ? kNone : found->second;
  };
  for (const int64_t k : ks_) {
    json[fmt::format("pass@{}", k)] = Over(of(part.pass, k), true);
    json[fmt::format("maj@{}", k)] = Over(of(part.majority, k), true);
  }
  return json;
}

Json EvalSummary::Finish() {
  if (!row_.empty()) EndRow();
  Json by_source = Json::object();
  for (const auto& [source, part] : by_source_) by_source[source] = JsonOf(part);
  return {{"by_data_source", by_source}, {"all", JsonOf(all_)}};
}

}  // namespace keel::tools
