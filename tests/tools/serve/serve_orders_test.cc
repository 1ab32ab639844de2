#include "tools/serve/serve_orders.h"

#include <gtest/gtest.h>

namespace keel::tools {
namespace {

TEST(ServeOrdersTest, TheOtherRanksGetWhatTheFirstSent) {
  rollout::Request request;
  request.prompt_id = 7;
  request.sample = 2;
  request.draws_as = 1;
  request.prompt = {5, 6, 250000};
  rollout::SamplingParams& p = request.sampling;
  p.temperature = 0.1;
  p.top_k = 12;
  p.top_p = 0.95;
  p.min_p = 0.3;
  p.repetition_penalty = 1.1;
  p.max_tokens = 99;
  p.stop_token_ids = {4};
  p.stop = {"end", "\xc3\xa9"};
  p.ignore_eos = true;
  p.continues_prompt = true;
  p.seed = ~uint64_t{0};
  p.prompt_log_probs = true;
  p.likeliest = 4;
  const ServeOrders sent{.take = {{3, 1}, {4, 0}},
                         .weights = WeightOrder::kRead,
                         .step = "run/global_step_5",
                         .add = {request}};
  const auto got = Unpacked(Packed(sent));
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->take, sent.take);
  EXPECT_EQ(got->weights, WeightOrder::kRead);
  EXPECT_EQ(got->step, sent.step);
  ASSERT_EQ(got->add.size(), 1u);
  const rollout::Request& found = got->add[0];
  EXPECT_EQ(found.prompt_id, 7u);
  EXPECT_EQ(found.sample, 2);
  EXPECT_EQ(found.draws_as, 1u);
  EXPECT_EQ(found.prompt, request.prompt);
  EXPECT_EQ(found.sampling.temperature, 0.1);
  EXPECT_EQ(found.sampling.top_k, 12);
  EXPECT_EQ(found.sampling.top_p, 0.95);
  EXPECT_EQ(found.sampling.min_p, 0.3);
  EXPECT_EQ(found.sampling.repetition_penalty, 1.1);
  EXPECT_TRUE(found.sampling.prompt_log_probs);
  EXPECT_EQ(found.sampling.likeliest, 4);
  EXPECT_EQ(found.sampling.max_tokens, 99);
  EXPECT_EQ(found.sampling.stop_token_ids, p.stop_token_ids);
  EXPECT_EQ(found.sampling.stop, p.stop);
  EXPECT_TRUE(found.sampling.ignore_eos);
  EXPECT_TRUE(found.sampling.continues_prompt);
  EXPECT_EQ(found.sampling.seed, ~uint64_t{0});
}

TEST(ServeOrdersTest, EmptyOnesAndWhatIsNone) {
  EXPECT_TRUE(Unpacked(Packed({}))->empty());
  for (const char* wrong : {"", "x", "\xa0"}) EXPECT_FALSE(Unpacked(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace keel::tools
