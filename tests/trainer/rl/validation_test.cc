// Validation metrics against values worked out by hand and by going through all choices.

#include "trainer/rl/validation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

namespace keel::trainer::rl {
namespace {

Response Sample(int64_t position, int sample, double score, const std::string& answer,
                const std::string& source = "math") {
  Response r;
  r.position = position;
  r.sample = sample;
  r.score = score;
  r.answer = answer;
  r.text = "thoughts " + std::to_string(sample) + " " + answer;
  r.data_source = source;
  return r;
}

TEST(ValidationTest, MeanBestWorstAndMajority) {
  const std::vector<Response> responses = {
      // The majority, "7", is wrong; the texts all differ.
      Sample(0, 0, 1, "8"), Sample(0, 1, 0, "7"), Sample(0, 2, 0, "7"), Sample(0, 3, 0, "9"),
      // A tie of "1" and "2": the first that was given counts.
      Sample(5, 0, 1, "1"), Sample(5, 1, 0, "2"), Sample(5, 2, 1, "1"), Sample(5, 3, 0, "2"),
      // Another source stands by itself.
      Sample(9, 0, 0.25, "x", "code")};
  const StepLine m = ValidationMetrics(responses, 4);
  const std::string math = "val-core/math/reward/";
  EXPECT_DOUBLE_EQ(m.Number(math + "mean@4"), (0.25 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(m.Number(math + "maj@4"), (0.0 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(m.Number(math + "best@4"), 1.0);
  EXPECT_DOUBLE_EQ(m.Number(math + "worst@4"), 0.0);
  // Of two of four: one right one is among them in 3 of 6 choices; one of two in 5 of 6.
  EXPECT_DOUBLE_EQ(m.Number(math + "best@2"), (3.0 / 6 + 5.0 / 6) / 2);
  EXPECT_DOUBLE_EQ(m.Number(math + "worst@2"), (0.0 + 1.0 / 6) / 2);
  EXPECT_DOUBLE_EQ(m.Number("val-core/code/reward/mean@4"), 0.25);
  EXPECT_FALSE(ValidationMetrics(responses, 1).Has("val-core/code/reward/maj@1"));
  EXPECT_DOUBLE_EQ(MeanScore(responses), 3.25 / 9);
}

TEST(ValidationTest, APromptOfWhichSomeHaveNoScoreStaysUnderTheSameNames) {
  // Of four to each, one of the second prompt's is left.
  const std::vector<Response> responses = {Sample(0, 0, 1, "a"), Sample(0, 1, 0, "b"),
                                           Sample(0, 2, 0, "b"), Sample(0, 3, 1, "b"),
                                           Sample(7, 2, 1, "a")};
  const StepLine m = ValidationMetrics(responses, 4);
  const std::string math = "val-core/math/reward/";
  EXPECT_DOUBLE_EQ(m.Number(math + "mean@4"), (0.5 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(m.Number(math + "best@2"), 5.0 / 6);  // of the first alone
  EXPECT_DOUBLE_EQ(m.Number(math + "maj@4"), (0.0 + 1.0) / 2);
  for (const char* other : {"mean@1", "maj@1", "best@1"}) EXPECT_FALSE(m.Has(math + other));
}

TEST(ValidationTest, WithoutAnAnswerTheTextVotes) {
  std::vector<Response> responses;
  for (int i = 0; i < 3; ++i) responses.push_back(Sample(0, i, i == 0 ? 1 : 0, ""));
  for (Response& r : responses) r.text = r.sample == 0 ? "right" : "wrong";
  EXPECT_DOUBLE_EQ(ValidationMetrics(responses, 3).Number("val-core/math/reward/maj@3"), 0.0);
  // An answer that reads like another's whole text is not the same vote.
  responses[0].answer = "wrong";
  responses[1].text = "other";
  EXPECT_DOUBLE_EQ(ValidationMetrics(responses, 3).Number("val-core/math/reward/maj@3"), 1.0);
}

TEST(ValidationTest, BestOfKIsTheMeanOverAllChoices) {
  const std::vector<double> scores = {0.1, 0.9, 0.4, 0.4, 0.7, 0.2};
  std::vector<Response> responses;
  for (size_t i = 0; i < scores.size(); ++i)
    responses.push_back(Sample(3, static_cast<int>(i), scores[i], std::to_string(i)));
  const StepLine m = ValidationMetrics(responses, 6);
  for (const int k : {2, 4, 6}) {
    double best = 0, worst = 0;
    int choices = 0;
    for (unsigned set = 0; set < 64; ++set) {
      if (std::popcount(set) != k) continue;
      double high = -1, low = 2;
      for (size_t i = 0; i < 6; ++i) {
        if (((set >> i) & 1) == 0) continue;
        high = std::max(high, scores[i]);
        low = std::min(low, scores[i]);
      }
      best += high;
      worst += low;
      ++choices;
    }
    const std::string name = "val-core/math/reward/";
    EXPECT_NEAR(m.Number(name + "best@" + std::to_string(k)), best / choices, 1e-12);
    EXPECT_NEAR(m.Number(name + "worst@" + std::to_string(k)), worst / choices, 1e-12);
  }
}

}  // namespace
}  // namespace keel::trainer::rl
