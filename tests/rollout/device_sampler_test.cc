// Tokens chosen on a device are those that the host chooses.

#include "rollout/device_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/tensor/host_kernels.h"

namespace keel::rollout {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 5, kColumns = 600;
constexpr size_t kVocabulary = 590;

class DeviceSampler : public ::testing::TestWithParam<LogProbsMode> {
 protected:
  void SetUp() override {
    if (parallel::WayOnHost() != parallel::HostWay::kBodies)
      GTEST_SKIP() << "of what a GPU would run: KEEL_DEVICE_PATHS=1";
    at::manual_seed(4);
    logits_ = at::randn({kRows, kColumns}) * 3;
  }

  at::Tensor logits_;
};

std::vector<SamplingParams> SomeParams() {
  std::vector<SamplingParams> all(6);
  all[1].temperature = 0;
  all[2].temperature = 0.6;
  all[3].top_k = 20;
  all[4].top_p = 0.7;
  all[4].temperature = 1.5;
  all[5].min_p = 0.1;
  all[5].top_k = 100;
  for (size_t i = 0; i < all.size(); ++i) all[i].seed = i;
  return all;
}

TEST_P(DeviceSampler, IsTheHosts) {
  const std::vector<SamplingParams> params = SomeParams();
  std::vector<TokenWanted> wanted;
  for (int i = 0; i < 60; ++i) {
    wanted.push_back({i % kRows, &params[static_cast<size_t>(i) % params.size()],
                      Draw{static_cast<uint64_t>(i / 7), i % 3, i}});
  }
  const auto found = ChooseOnDevice(logits_, kVocabulary, GetParam(), wanted);
  ASSERT_EQ(found.size(), wanted.size());
  Sampler::Workspace workspace;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::span<const float> row(logits_.const_data_ptr<float>() + wanted[i].row * kColumns,
                                     static_cast<size_t>(kColumns));
    const ChosenToken expected =
        ValueOrThrow(Sampler(GetParam(), kVocabulary)
                         .Choose(row, *wanted[i].params, wanted[i].draw, {}, workspace));
    ASSERT_TRUE(found[i].ok()) << found[i].status().ToString();
    EXPECT_EQ(found[i]->token, expected.token) << i;
    EXPECT_NEAR(found[i]->log_prob, expected.log_prob, 1e-5) << i;
  }
}

TEST_P(DeviceSampler, NamesTheBrokenLogitAsTheHostDoes) {
  logits_[2][123] = NAN;
  const SamplingParams params;
  const std::vector<TokenWanted> wanted = {{2, &params, {}}, {3, &params, {}}};
  const auto found = ChooseOnDevice(logits_, kVocabulary, GetParam(), wanted);
  EXPECT_EQ(found[0].status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(found[0].status().message(), HasSubstr("the logit of token 123 is nan"));
  EXPECT_TRUE(found[1].ok());
}

INSTANTIATE_TEST_SUITE_P(Modes, DeviceSampler,
                         ::testing::Values(LogProbsMode::kPolicy, LogProbsMode::kRaw,
                                           LogProbsMode::kProcessed));

TEST(IsForDeviceSampler, WhatNeedsAHostIsLeftToIt) {
  SamplingParams params;
  EXPECT_TRUE(IsForDeviceSampler(params));
  params.repetition_penalty = 1.1;
  EXPECT_FALSE(IsForDeviceSampler(params));
  params = {};
  params.likeliest = 1;
  EXPECT_FALSE(IsForDeviceSampler(params));
  params = {};
  params.prompt_log_probs = true;
  EXPECT_FALSE(IsForDeviceSampler(params));
}

}  // namespace
}  // namespace keel::rollout
