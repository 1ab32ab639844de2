// The forecast against what the ranks of a real engine hold.

#include "trainer/engine/memory_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

model::HfConfig Shape(bool tied, model::Family family = model::Family::kLlama) {
  model::HfConfig config = keel::testing::TinyConfig(tied, family);
  config.vocab_size = 512;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 4;
  if (!config.dense_ffn.empty()) config.dense_ffn = {true, false, true, false};
  if (!config.recurrent.empty()) config.recurrent = {true, true, true, false};
  return config;
}

struct Room {
  int tp, dp, pp;
  bool tied, bf16;
  model::Family family = model::Family::kLlama;
};

class MemoryForecastTest : public ::testing::TestWithParam<Room> {};

TEST_P(MemoryForecastTest, IsWhatTheFullestRankHolds) {
  const Room& c = GetParam();
  std::mutex mutex;
  double most = 0;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.dtype = c.bf16 ? at::kBFloat16 : at::kFloat;
    options.bucket_bytes = 1 << 20;
    TrainEngine engine(context, Shape(c.tied, c.family), options);
    engine.Initialize(1);
    double bytes = 0;
    for (const StateClass one : {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer})
      bytes += static_cast<double>(engine.residency().device_bytes(one));
    const std::lock_guard lock(mutex);
    most = std::max(most, bytes);
  });
  Config config;
  config.trainer.save_freq = -1;
  config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = c.tp;
  config.actor_rollout_ref.actor.megatron.pipeline_model_parallel_size = c.pp;
  config.actor_rollout_ref.model.dtype = c.bf16 ? WeightDtype::kBfloat16 : WeightDtype::kFloat32;
  const double forecast =
      ForecastTraining(config, Shape(c.tied, c.family), c.tp * c.dp * c.pp).HostBytes(false);
  EXPECT_GT(forecast, 0.9 * most);
  EXPECT_LT(forecast, 1.1 * most);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryForecastTest,
                         ::testing::Values(Room{1, 1, 1, false, false}, Room{1, 1, 1, true, true},
                                           Room{2, 1, 1, false, false}, Room{1, 2, 1, false, true},
                                           Room{1, 2, 1, false, false}, Room{1, 1, 2, false, false},
                                           Room{1, 1, 2, true, true}, Room{3, 1, 1, false, true},
                                           Room{3, 1, 1, true, false}, Room{4, 1, 1, false, false},
                                           Room{2, 1, 1, true, false, model::Family::kMixtral},
                                           Room{3, 1, 1, true, true, model::Family::kQwen3Moe},
                                           Room{2, 1, 1, true, true, model::Family::kQwen2Moe},
                                           Room{1, 2, 1, true, true, model::Family::kArcee},
                                           Room{2, 1, 1, true, true, model::Family::kQwen35}));

TEST(MemoryCheckTest, WhatCannotFitIsRefusedWithItsPartsAndAWayOut) {
  Config config;
  model::HfConfig huge = Shape(false);
  huge.vocab_size = int64_t{1} << 40;
  huge.hidden_size = int64_t{1} << 40;  // products of these overflow integers
  const MemoryForecast forecast = ForecastTraining(config, huge, 2);
  HostMemory memory;
  memory.total = memory.available = int64_t{8} << 30;
  const auto checked = CheckMemory(forecast, memory, 2, false);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(checked.status().message(),
              AllOf(HasSubstr("weights"), HasSubstr("optimizer state"), HasSubstr("8.0 GiB"),
                    HasSubstr("the 2 ranks of this node"), HasSubstr("use more ranks")));
}

TEST(MemoryCheckTest, ABatchOfMoreSequencesThanMemoryIsRefused) {
  Config config;
  config.data.train_batch_size = int64_t{1} << 30;
  HostMemory memory;
  memory.total = memory.available = int64_t{8} << 30;
  for (const TaskKind task : {TaskKind::kPretrain, TaskKind::kRl, TaskKind::kDpo}) {
    config.trainer.task = task;
    const auto checked = CheckMemory(ForecastTraining(config, Shape(false), 1), memory, 1, false);
    ASSERT_FALSE(checked.ok()) << NameOf(task);
    EXPECT_THAT(checked.status().message(), HasSubstr("data.train_batch_size"));
  }
}

TEST(MemoryCheckTest, EachLimitIsLookedAt) {
  const MemoryForecast forecast{{{"weights", 3e9, true}, {"staging of saves", 1e9, false}}};
  HostMemory memory;
  memory.total = memory.available = 9'000'000'000;
  EXPECT_EQ(ValueOrThrow(CheckMemory(forecast, memory, 2, false)), "");
  EXPECT_FALSE(CheckMemory(forecast, memory, 3, false).ok());
  EXPECT_EQ(ValueOrThrow(CheckMemory(forecast, memory, 8, true)), "") << "weights are on the GPU";
  memory.available = 5'000'000'000;
  EXPECT_THAT(ValueOrThrow(CheckMemory(forecast, memory, 2, false)), HasSubstr("available now"));
  memory.address_space = 2'000'000'000;
  EXPECT_THAT(CheckMemory(forecast, memory, 1, false).status().message(), HasSubstr("ulimit -v"));
}

TEST(MemoryCheckTest, EveryRoleAndItsStagingCount) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.trainer.save_freq = 10;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGae;
  config.actor_rollout_ref.actor.loss.use_kl_loss = true;
  config.actor_rollout_ref.rollout.kv_cache_megabytes = 64;
  config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = 2;
  config.actor_rollout_ref.rollout.tensor_model_parallel_size = 1;
  EXPECT_THAT(ForecastTraining(config, Shape(false), 2).ToString(),
              AllOf(HasSubstr("critic's optimizer state"), HasSubstr("reference's weights"),
                    HasSubstr("rollout's weights"), HasSubstr("keys and values 64 MiB"),
                    HasSubstr("staging of saves")));
}

}  // namespace
}  // namespace keel::trainer
