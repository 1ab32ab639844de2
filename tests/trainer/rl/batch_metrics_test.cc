// What a line says of a batch's lengths, as verl's compute_data_metrics has it.

#include "trainer/rl/batch_metrics.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace keel::trainer::rl {
namespace {

RolloutBatch BatchOf(const std::vector<int64_t>& lengths) {
  std::vector<Response> responses;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Response r;
    r.position = static_cast<int64_t>(i);
    r.prompt = {1, 2, 3};
    r.tokens.assign(static_cast<size_t>(lengths[i]), 7);
    responses.push_back(r);
  }
  return RolloutBatch::Make(std::move(responses));
}

TEST(BatchMetricsTest, ResponsesOfNothingAreCountedByThemselves) {
  StepLine line;
  line.Set("timing_s/gen", 2.0);
  AddBatchMetrics(BatchOf({0, 4, 2, 0, 4}), 8, 4, &line);
  EXPECT_EQ(line.Number("response_length/mean"), 2);
  EXPECT_EQ(line.Number("response_length/min"), 0);
  EXPECT_EQ(line.Number("response_length/clip_ratio"), 0.4);
  EXPECT_EQ(line.Number("response/aborted_ratio"), 0.4);
  EXPECT_DOUBLE_EQ(line.Number("response_length_non_aborted/mean"), 10.0 / 3);
  EXPECT_EQ(line.Number("response_length_non_aborted/min"), 2);
  EXPECT_EQ(line.Number("response_length_non_aborted/max"), 4);
  EXPECT_DOUBLE_EQ(line.Number("response_length_non_aborted/clip_ratio"), 2.0 / 3);
  EXPECT_EQ(line.Number("prompt_length/mean"), 3);
  EXPECT_EQ(line.Number("timing_per_token_ms/gen"), 200);
}

// data.max_response_length_key: each was cut, and none has as many tokens as the longest may have.
TEST(BatchMetricsTest, ResponsesThatTheirRowsBoundHasCutAreClipped) {
  RolloutBatch batch = BatchOf({3, 2, 4, 1});
  for (const size_t s : {0, 1}) batch.responses[s].finish = "length";
  for (const size_t s : {2, 3}) batch.responses[s].finish = "stop";
  StepLine line;
  AddBatchMetrics(batch, 8, 4, &line);
  // With the one that ended of itself at the longest, as verl counts.
  EXPECT_EQ(line.Number("response_length/clip_ratio"), 0.75);
  EXPECT_EQ(line.Number("response_length_non_aborted/clip_ratio"), 0.75);
}

TEST(BatchMetricsTest, OfNothingAtAllNoNumberIsMadeUp) {
  StepLine line;
  AddBatchMetrics(BatchOf({0, 0}), 8, 4, &line);
  EXPECT_EQ(line.Number("response/aborted_ratio"), 1);
  EXPECT_EQ(line.Number("response_length_non_aborted/clip_ratio"), 0);
  EXPECT_FALSE(line.Has("response_length_non_aborted/mean"));
}

}  // namespace
}  // namespace keel::trainer::rl
