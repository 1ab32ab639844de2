// What a rank of a job makes of its configuration.

#include "trainer/run/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <string>

#include "common/clock.h"
#include "common/log.h"
#include "parallel/rank_status.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

using checkpoint::testing::ReadAll;
using checkpoint::testing::TempDir;
using ::testing::HasSubstr;

class JobTest : public ::testing::Test {
 protected:
  JobOptions Options() { return {CommonOf(config_), env_, &stop_, nullptr}; }
  Job Make() { return Job(Options(), at::kCPU, log_); }
  std::string Logged() const { return ReadAll(folder_ / "log"); }

  const TempDir folder_;
  Logger log_{[this] {
    LogOptions options;
    options.file = folder_ / "log";
    return options;
  }()};
  Config config_;
  parallel::LaunchEnv env_;
  std::atomic<int64_t> stop_ = 0;
};

TEST_F(JobTest, AnEngineIsAsTheConfigurationHasIt) {
  config_.actor_rollout_ref.model.dtype = WeightDtype::kBfloat16;
  config_.actor_rollout_ref.model.enable_gradient_checkpointing = true;
  MegatronSection& megatron = config_.actor_rollout_ref.actor.megatron;
  megatron.sequence_parallel = true;
  megatron.bucket_megabytes = 0.5;
  megatron.grad_offload = true;
  OptimSection optim;
  optim.betas = {0.8, 0.7};
  optim.eps = 1e-5;
  optim.weight_decay = 0.25;
  optim.clip_grad = 3;
  for (const int64_t tp : {1, 2}) {
    megatron.tensor_model_parallel_size = tp;
    Job job = Make();
    const TrainEngineOptions options = job.EngineOptions(megatron, optim);
    EXPECT_EQ(options.dtype, at::kBFloat16);
    EXPECT_EQ(options.device, at::Device(at::kCPU));
    EXPECT_EQ(options.sequence_parallel, tp > 1) << "one rank has nothing to split";
    EXPECT_TRUE(options.recompute);
    EXPECT_EQ(options.bucket_bytes, 1 << 19);
    EXPECT_EQ(options.adamw.beta1, 0.8);
    EXPECT_EQ(options.adamw.beta2, 0.7);
    EXPECT_EQ(options.adamw.eps, 1e-5);
    EXPECT_EQ(options.adamw.weight_decay, 0.25);
    EXPECT_EQ(options.clip_grad, 3);
    EXPECT_FALSE(options.offload.params);
    EXPECT_TRUE(options.offload.grads);
    EXPECT_FALSE(options.offload.optimizer);
    EXPECT_EQ(options.vote, &job.vote());
  }
}

// Only where texts are cut into blocks are they cut here.
TEST_F(JobTest, BatchesAreOfThisRanksPlace) {
  config_.data.train_batch_size = 12;
  config_.data.micro_batch_size_per_gpu = 3;
  config_.data.max_length = 40;
  config_.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = 2;
  keel::testing::RunRanks(2, 2, 1, [&](parallel::ParallelContext& context) {
    Job job(Options(), at::kCPU, log_);
    job.Attach(context, at::kCPU);
    TrainEngineOptions engine;
    engine.sequence_parallel = true;
    const BatchOptions batches = job.BatchesFor(engine);
    EXPECT_EQ(batches.batch_size, 12);
    EXPECT_EQ(batches.micro_batch_size, 3);
    EXPECT_EQ(batches.dp, 2);
    EXPECT_EQ(batches.dp_rank, context.dp_rank());
    EXPECT_EQ(batches.pad_to_multiple, 2);
    engine.sequence_parallel = false;
    EXPECT_EQ(job.BatchesFor(engine).pad_to_multiple, 1);
  });
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  struct Case {
    TaskKind task;
    Packing packing;
    int64_t longest;
  };
  for (const Case& c : {Case{TaskKind::kPretrain, Packing::kNone, 40},
                        {TaskKind::kSft, Packing::kWrapped, 40},
                        {TaskKind::kSft, Packing::kBestFit, kNoLimit},
                        {TaskKind::kDpo, Packing::kNone, kNoLimit}}) {
    config_.trainer.task = c.task;
    config_.data.packing = c.packing;
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      Job job(Options(), at::kCPU, log_);
      job.Attach(context, at::kCPU);
      EXPECT_EQ(job.BatchesFor({}).max_length, c.longest)
          << static_cast<int>(c.task) << ", " << static_cast<int>(c.packing);
    });
  }
}

TEST_F(JobTest, AScheduleThatChangesNoWeightIsSaid) {
  OptimSection optim;
  optim.lr = 0.5;
  optim.min_lr = 0.25;
  optim.lr_decay_style = LrDecayStyle::kWsd;
  optim.lr_warmup_steps = 3;
  const Job job = Make();
  const LrScheduleOptions schedule = job.Schedule(optim, "critic.optim", 40);
  EXPECT_EQ(schedule.lr, 0.5);
  EXPECT_EQ(schedule.min_lr, 0.25);
  EXPECT_EQ(schedule.style, LrDecayStyle::kWsd);
  EXPECT_EQ(schedule.warmup_steps, 3);
  EXPECT_EQ(schedule.decay_steps, 40);
  EXPECT_EQ(schedule.wsd_decay_steps, 4) << "a tenth of the run";
  EXPECT_EQ(job.Schedule(optim, "critic.optim", 5).wsd_decay_steps, 1);
  EXPECT_EQ(Logged(), "");
  optim.lr_decay_steps = 30;
  optim.lr_wsd_decay_steps = 7;
  EXPECT_EQ(job.Schedule(optim, "critic.optim", 40).decay_steps, 30);
  EXPECT_EQ(job.Schedule(optim, "critic.optim", 40).wsd_decay_steps, 7);
  optim.min_lr = 0;
  optim.lr_warmup_steps = 100;
  (void)job.Schedule(optim, "critic.optim", 1);
  EXPECT_THAT(Logged(), HasSubstr("critic.optim.lr_warmup_steps is 100: the learning rate is 0 in "
                                  "all of the run's 1 steps"));
  optim.lr = 0;
  (void)job.Schedule(optim, "critic.optim", 40);
  EXPECT_THAT(Logged(), HasSubstr("critic.optim.lr is 0: "));
  // The other ranks would say the same.
  const std::string said = Logged();
  env_.rank = 1;
  env_.world_size = 2;
  (void)Make().Schedule(optim, "critic.optim", 40);
  EXPECT_EQ(Logged(), said);
}

TEST_F(JobTest, WhatItDoesIsToldToTheLauncher) {
  const std::string path = folder_ / "status";
  parallel::RankStatus status(path);
  JobOptions options = Options();
  options.status = &status;
  const Job job(options, at::kCPU, log_);
  EXPECT_STREQ(job.phase(), "start");
  job.Phase("train", 7);
  EXPECT_STREQ(job.phase(), "train");
  const auto reading = parallel::RankStatus::Read(path);
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->step, 7);
  EXPECT_EQ(reading->phase, "train");
  Make().Phase("save", 8);  // to nobody
}

TEST_F(JobTest, AStopIsCountedFromWhenItWasAskedFor) {
  const Job job = Make();
  EXPECT_FALSE(job.StopRequested());
  EXPECT_EQ(job.SecondsSinceStop(), 0);
  stop_ = SystemClock().Monotonic().count() - 5'000'000'000;
  EXPECT_TRUE(job.StopRequested());
  EXPECT_GE(job.SecondsSinceStop(), 5);
  JobOptions options = Options();
  options.stop_requested = nullptr;
  EXPECT_FALSE(Job(options, at::kCPU, log_).StopRequested());
}

// The launcher says when the job began: its restarts are the job's.
TEST_F(JobTest, TheRunsSecondsAreThoseOfTheJob) {
  EXPECT_LT(Make().RunSeconds(), 3600);
  env_.job_start = std::chrono::duration_cast<std::chrono::seconds>(SystemClock().Monotonic()) -
                   std::chrono::hours(2);
  EXPECT_GE(Make().RunSeconds(), 7200);
}

TEST_F(JobTest, WithoutADirectoryTheWeightsAreThoseOfTheSeed) {
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    ModelDescription model;
    model.config = keel::testing::TinyConfig(false, model::Family::kLlama);
    config_.trainer.seed = 9;
    Job job = Make();
    TrainEngine made(context, model.config, {}), expected(context, model.config, {});
    job.FillWeights(model, made);
    expected.Initialize(9);
    EXPECT_TRUE(at::equal(made.weights().flat(), expected.weights().flat()));
    model.directory = folder_ / "none";
    EXPECT_THROW(job.FillWeights(model, made), Error);
  });
}

// A rank that is asked to stop, or still saves, is heard of by all.
TEST_F(JobTest, VotesAreOfAllRanks) {
  keel::testing::RunRanks(1, 2, 1, [&](parallel::ParallelContext& context) {
    Job job(Options(), at::kCPU, log_);
    job.Attach(context, at::kCPU);
    job.vote().set_mine([&] { return StepVote::Wishes{context.rank() == 1, context.rank() == 0}; });
    job.CountVotes();
    EXPECT_TRUE(job.vote().stop());
    EXPECT_TRUE(job.vote().busy());
    job.vote().set_mine([] { return StepVote::Wishes{false, false}; });
    job.CountVotes();
    EXPECT_FALSE(job.vote().stop());
    EXPECT_FALSE(job.vote().busy());
  });
}

}  // namespace
}  // namespace keel::trainer
