#include "trainer/config/config_async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

TEST(RolesTest, AllTrainWhereTheyGenerateInTurns) {
  Config config;
  const JobRoles roles = ValueOrThrow(RolesOf(config, 8, 0));
  EXPECT_EQ(roles.trainers, 8);
  EXPECT_EQ(roles.workers, 0);
  EXPECT_THAT(RolesOf(config, 8, 4).status().message(), HasSubstr("placement is colocated"));
  config.trainer.nnodes = 2;
  config.trainer.n_gpus_per_node = 4;
  EXPECT_EQ(ValueOrThrow(RolesOf(config, 8, 0)).trainers, 8);
  EXPECT_THAT(RolesOf(config, 9, 0).status().message(),
              HasSubstr("trainer.nnodes 2 x trainer.n_gpus_per_node 4 = 8 != world size 9"));
}

TEST(RolesTest, TheFirstTrainAndTheOthersAreWholeReplicas) {
  Config config;
  config.async_training.placement = Placement::kSplit;
  EXPECT_THAT(RolesOf(config, 8, 0).status().message(), HasSubstr("needs to know who trains"));
  EXPECT_EQ(ValueOrThrow(RolesOf(config, 8, 6)).workers, 2);
  EXPECT_THAT(RolesOf(config, 8, 8).status().message(),
              HasSubstr("world size 8 = 8 trainers + 0 rollout ranks"));
  config.actor_rollout_ref.rollout.tensor_model_parallel_size = 4;
  EXPECT_THAT(RolesOf(config, 8, 6).status().message(), HasSubstr("parallel_size 4"));
  EXPECT_EQ(ValueOrThrow(RolesOf(config, 8, 4)).workers, 4);
  config.trainer.nnodes = 1;
  config.trainer.n_gpus_per_node = 4;
  EXPECT_EQ(ValueOrThrow(RolesOf(config, 8, 0)).trainers, 4);
  EXPECT_THAT(RolesOf(config, 8, 2).status().message(), HasSubstr("--roles says 2 trainers"));
}

TEST(ConfigAsyncTest, WhatDoesNotGoTogetherIsSaid) {
  Config config;
  EXPECT_TRUE(ValidateAsyncConfig(config).empty());
  config.async_training.placement = Placement::kSplit;
  config.trainer.nnodes = 1;
  config.trainer.rollout_replay_dir = "x";
  const std::vector<std::string> problems = ValidateAsyncConfig(config);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_THAT(problems[0], HasSubstr("split is for trainer.task: rl"));
  EXPECT_THAT(problems[1], HasSubstr("trainer.rollout_replay_dir"));
  EXPECT_THAT(problems[2], HasSubstr("give both, or none"));
}

TEST(ConfigAsyncTest, KeptKeysAndValuesAreOfNoSchedule) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.async_training.recompute_kv = false;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("false is for placement: split"));
  config.async_training.placement = Placement::kSplit;
  EXPECT_TRUE(ValidateAsyncConfig(config).empty());
  config.async_training.deterministic = true;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("recompute_kv is false: a token"));
  config.async_training.deterministic = false;
  config.async_training.schedule_record = "x";
  EXPECT_EQ(ValidateAsyncConfig(config).size(), 1u);
  config.async_training.schedule_record.reset();
  config.async_training.schedule_replay = "x";
  EXPECT_EQ(ValidateAsyncConfig(config).size(), 1u);
}

TEST(ConfigAsyncTest, ABoundOfTimeIsOfNoSchedule) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.async_training.max_response_seconds = 60;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("it is for placement: split"));
  config.async_training.placement = Placement::kSplit;
  EXPECT_TRUE(ValidateAsyncConfig(config).empty());
  config.async_training.schedule_replay = "x";
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("a matter of time"));
}

TEST(ConfigAsyncTest, WhoIsReadyFirstIsOfNoSchedule) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.async_training.order = StepOrder::kReadyFirst;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("ready_first is for placement: split"));
  config.async_training.placement = Placement::kSplit;
  EXPECT_TRUE(ValidateAsyncConfig(config).empty());
  config.async_training.schedule_record = "x";
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("whoever is ready trained next"));
}

TEST(ConfigAsyncTest, OlderWeightsNeedACorrection) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.async_training.placement = Placement::kSplit;
  config.async_training.max_staleness = 2;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
  EXPECT_THAT(ValidateAsyncConfig(config)[0], HasSubstr("nothing corrects for older weights"));
  config.algorithm.rollout_correction.bypass_mode = true;
  EXPECT_TRUE(ValidateAsyncConfig(config).empty());
  config.async_training.placement = Placement::kColocated;
  ASSERT_EQ(ValidateAsyncConfig(config).size(), 1u);
}

}  // namespace
}  // namespace keel::trainer
