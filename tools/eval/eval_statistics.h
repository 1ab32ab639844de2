// What the samples of an evaluation say: pass@k, maj@k and means by data source, with intervals.
// Pure, torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"

namespace keel::tools {

// The chance that of k samples, drawn without replacement from n of which c are right, one at least
// is: 1 - C(n - c, k) / C(n, k), as Chen et al. 2021 ("Evaluating Large Language Models Trained on
// Code") estimate pass@k without bias. 1 <= k <= n, 0 <= c <= n.
double PassAtK(int64_t n, int64_t c, int64_t k);

struct Vote {
  std::string answer;  // equal ones are one; "" agrees with none
  bool right = false;
};
// The share of right majorities among the floor(n / k) runs of k votes, in their order, that do not
// overlap: each is one draw of maj@k, and so is their mean without bias. The answer that most gave;
// among equals, the one that was given first. 1 <= k <= votes.
double MajorityAtK(std::span<const Vote> votes, int64_t k);

// A mean over rows, and where it would be for other rows of the same kind.
struct Estimate {
  double mean = 0;
  std::optional<double> low, high;  // at 95 %; none of a single row
  int64_t rows = 0;
};
// The samples of a row are not independent, the rows are: so the standard error is that of the
// rows' means (Miller 2024, "Adding Error Bars to Evals"), and the interval 1.96 of it to both
// sides. Within [0, 1] where `share` says that all values are; there, all rows 0 or all 1, whose
// standard error is 0, Wilson's interval.
Estimate EstimateOf(std::span<const double> rows, bool share);
inline constexpr const char* kIntervalMethod =
    "95 %: mean +- 1.96 standard errors over rows (the samples of a row are one cluster), within "
    "[0, 1] for shares; where all rows are 0, or all 1, Wilson's";

// One sample that was scored.
struct ScoredSample {
  int64_t row = 0;
  int sample = 0;
  std::string data_source;
  std::string answer;  // its vote
  double score = 0;
  bool right = false;
  bool cut = false;     // by the limit of its length
  bool failed = false;  // its verifier gave nothing: as `score` and `right` are set
  bool counts = true;   // else it is counted as failed, and no more
};

// Sums up samples as they come, row by row. It holds a few numbers a row, and the samples of one.
class EvalSummary {
 public:
  // `n` samples a row.
  EvalSummary(int64_t n, std::vector<int64_t> ks) : n_(n), ks_(std::move(ks)) {}

  // By row, then by sample: those of a row that is over must not come.
  void Add(ScoredSample sample);
  int64_t samples() const { return all_.samples; }
  int64_t errors() const { return all_.errors; }
  // After the last: {"by_data_source": {NAME: {...}}, "all": {...}}, each with rows, samples,
  // errors, cut, and the estimates mean_score, mean@n, pass@k and maj@k for each k, over rows with
  // so many samples.
  Json Finish();

 private:
  // Of all rows, or those of a source: values by row.
  struct Part {
    int64_t rows = 0, samples = 0, errors = 0, cut = 0;
    std::vector<double> scores, right;
    std::map<int64_t, std::vector<double>> pass, majority;  // by k
  };
  void EndRow();
  void AddRow(std::span<const ScoredSample> samples, Part* part) const;
  Json JsonOf(const Part& part) const;

  const int64_t n_;
  const std::vector<int64_t> ks_;
  std::vector<ScoredSample> row_;  // that is under way
  std::map<std::string, Part> by_source_;
  Part all_;
};

}  // namespace keel::tools
