// The updates of a step against the same ones made by hand.

#include "trainer/rl/learn/learner.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/rl/learn/tiny_batch.h"
#include "trainer/config/config.h"

namespace keel::trainer::rl {
namespace {

// What a batch was worth, whatever that may have been.
Experience WorthOf(const BatchShare& share) {
  Experience e;
  for (int64_t i = 0; i < share.tokens(); ++i) {
    e.old_log_probs.push_back(-5.0F + 0.01F * static_cast<float>(i));
    e.advantages.push_back(i % 3 == 0 ? 1.0F : -0.5F);
    e.values.push_back(0.1F * static_cast<float>(i % 5));
    e.returns.push_back(0.2F * static_cast<float>(i % 4));
  }
  return e;
}

class LearnerTest : public ::testing::Test {
 protected:
  LearnerTest() {
    config_.data.train_batch_size = 4;
    config_.data.max_response_length = 4;
    config_.trainer.critic_warmup = 0;
    ActorLossSection& loss = config_.actor_rollout_ref.actor.loss;
    loss.ppo_mini_batch_size = 2;
    loss.ppo_epochs = 3;
    config_.critic.ppo_mini_batch_size = 4;
    config_.critic.ppo_epochs = 2;
    schedules_.actor = Linear(0.1);
    schedules_.critic = Linear(0.2);
  }
  // Up over four steps, and down over as many.
  static LrScheduleOptions Linear(double lr) {
    LrScheduleOptions schedule;
    schedule.lr = lr;
    schedule.warmup_steps = 4;
    schedule.decay_steps = 8;
    return schedule;
  }
  static TrainEngineOptions EngineOptions(bool critic = false) {
    TrainEngineOptions options;
    options.value_head = critic;
    return options;
  }
  // Calls body on the only rank.
  void Alone(const std::function<void(parallel::ParallelContext&)>& body) {
    keel::testing::RunRanks(1, 1, 1, body);
  }
  RlRun Run(parallel::ParallelContext& context, const Roles& roles) {
    return {config_, roles, context, options_};
  }
  // An epoch's updates of so many prompts each.
  std::vector<MiniBatch> Cut(int64_t prompts_each, int64_t step, int64_t epoch) const {
    const MiniBatchOptions options{prompts_each, config_.actor_rollout_ref.actor.loss.shuffle,
                                   static_cast<uint64_t>(config_.trainer.seed)};
    return CutIntoMiniBatches(share_.outline(), options, step, epoch);
  }
  static std::vector<float> WeightsOf(TrainEngine& engine) {
    const at::Tensor flat = engine.weights().flat();
    return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
  }

  const model::HfConfig shape_ = keel::testing::TinyConfig(false, model::Family::kLlama);
  const BatchShare share_ = BatchShare::All(TinyBatch(4));
  Experience experience_ = WorthOf(share_);
  Config config_;
  RlBatchOptions options_;
  LearnerSchedules schedules_;
  StepLine metrics_;
};

// Three epochs of two updates are six, each with Adam's count of those before it, at the rate of
// the step.
TEST_F(LearnerTest, TheActorsUpdatesAreThoseOfItsEpochs) {
  Alone([&](parallel::ParallelContext& context) {
    TrainEngine actor(context, shape_, EngineOptions()), by_hand(context, shape_, EngineOptions());
    actor.Initialize(5);
    by_hand.Initialize(5);
    Learner learner(Run(context, {&actor, nullptr, nullptr}), schedules_, nullptr);
    const Learner::Learned learned = learner.Learn(2, share_, experience_, 10, 0, &metrics_);
    EXPECT_EQ(learned.actor.applied, 6);
    EXPECT_EQ(learned.critic_applied, 0);

    ActorUpdate update;
    update.targets = {experience_.old_log_probs, experience_.advantages, {}, {}, {}};
    update.scale_factor = 4;
    update.temperature = config_.actor_rollout_ref.rollout.temperature;
    EpochUpdates one{{}, options_, LearningRate(schedules_.actor, 2), 10};
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      one.updates = Cut(2, 2, epoch);
      EXPECT_EQ(one.updates.size(), 2U);
      EXPECT_EQ(UpdateActor(by_hand, context, share_, one, update).applied, 2);
      one.t += 2;
    }
    EXPECT_EQ(WeightsOf(actor), WeightsOf(by_hand));
    EXPECT_EQ(metrics_.Number("actor/lr"), LearningRate(schedules_.actor, 2));
    EXPECT_GT(metrics_.Number("timing_s/update_actor"), 0);
  });
}

// The critic learns by its own epochs, mini-batches and rate.
TEST_F(LearnerTest, TheCriticsUpdatesAreItsOwn) {
  Alone([&](parallel::ParallelContext& context) {
    TrainEngine actor(context, shape_, EngineOptions());
    TrainEngine critic(context, shape_, EngineOptions(true)),
        by_hand(context, shape_, EngineOptions(true));
    actor.Initialize(5);
    critic.Initialize(6);
    by_hand.Initialize(6);
    Learner learner(Run(context, {&actor, nullptr, &critic}), schedules_, nullptr);
    EXPECT_EQ(learner.Passes(share_.outline(), 1).size(), 3U * 2 + 2 * 1);
    const Learner::Learned learned = learner.Learn(1, share_, experience_, 0, 20, &metrics_);
    EXPECT_EQ(learned.actor.applied, 6);
    EXPECT_EQ(learned.critic_applied, 2);
    EXPECT_EQ(metrics_.Number("critic/skipped_updates"), 0);
    EXPECT_EQ(metrics_.Number("critic/lr"), LearningRate(schedules_.critic, 1));

    CriticUpdate update;
    update.targets = {experience_.values, experience_.returns};
    update.loss.cliprange_value = config_.critic.cliprange_value;
    update.scale_factor = 4;
    EpochUpdates one{{}, options_, LearningRate(schedules_.critic, 1), 20};
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      one.updates = Cut(4, 1, epoch);
      one.t += UpdateCritic(by_hand, context, share_, one, update).applied;
    }
    EXPECT_EQ(WeightsOf(critic), WeightsOf(by_hand));
  });
}

// Until the critic has warmed up the actor stays as it is; its rate begins with its own first
// update.
TEST_F(LearnerTest, TheActorBeginsBehindTheCriticsWarmup) {
  config_.trainer.critic_warmup = 3;
  Alone([&](parallel::ParallelContext& context) {
    TrainEngine actor(context, shape_, EngineOptions());
    TrainEngine critic(context, shape_, EngineOptions(true));
    actor.Initialize(5);
    critic.Initialize(6);
    Learner learner(Run(context, {&actor, nullptr, &critic}), schedules_, nullptr);
    const std::vector<float> before = WeightsOf(actor);
    for (const int64_t step : {1, 3}) {
      StepLine line;
      const Learner::Learned learned = learner.Learn(step, share_, experience_, 0, 0, &line);
      EXPECT_EQ(learned.actor.applied, 0);
      EXPECT_EQ(learned.critic_applied, 2);
      EXPECT_EQ(WeightsOf(actor), before);
    }
    const Learner::Learned learned = learner.Learn(5, share_, experience_, 0, 0, &metrics_);
    EXPECT_EQ(learned.actor.applied, 6);
    EXPECT_EQ(metrics_.Number("actor/lr"), LearningRate(schedules_.actor, 2));
    EXPECT_NE(LearningRate(schedules_.actor, 2), LearningRate(schedules_.actor, 5));
    EXPECT_NE(WeightsOf(actor), before);
  });
}

// What is not finite changes nothing, and is counted where it was.
TEST_F(LearnerTest, UpdatesThatAreNotFiniteAreSkippedAndCounted) {
  Alone([&](parallel::ParallelContext& context) {
    TrainEngine actor(context, shape_, EngineOptions());
    TrainEngine critic(context, shape_, EngineOptions(true));
    actor.Initialize(5);
    critic.Initialize(6);
    Learner learner(Run(context, {&actor, nullptr, &critic}), schedules_, nullptr);
    const std::vector<float> actors = WeightsOf(actor), critics = WeightsOf(critic);
    // In a token of one prompt alone: of the actor's two updates an epoch one has it.
    experience_.advantages[0] = std::numeric_limits<float>::infinity();
    experience_.returns[0] = std::numeric_limits<float>::quiet_NaN();
    const Learner::Learned learned = learner.Learn(2, share_, experience_, 0, 0, &metrics_);
    EXPECT_EQ(learned.actor.applied, 3);
    EXPECT_EQ(learned.actor.skipped, 3);
    EXPECT_EQ(learned.critic_applied, 0);
    EXPECT_EQ(learned.critic_skipped, 2);
    EXPECT_EQ(metrics_.Number("critic/skipped_updates"), 2);
    EXPECT_NE(WeightsOf(actor), actors);
    EXPECT_EQ(WeightsOf(critic), critics);
  });
}

// One update of the policy that acted needs no log-probabilities from before.
TEST_F(LearnerTest, TheOnlyUpdateFindsThePolicyThatActed) {
  ActorLossSection& loss = config_.actor_rollout_ref.actor.loss;
  loss.ppo_mini_batch_size = 4;
  loss.ppo_epochs = 1;
  Alone([&](parallel::ParallelContext& context) {
    TrainEngine actor(context, shape_, EngineOptions());
    actor.Initialize(5);
    Learner learner(Run(context, {&actor, nullptr, nullptr}), schedules_, nullptr);
    experience_.old_log_probs.clear();
    const Learner::Learned learned = learner.Learn(2, share_, experience_, 0, 0, &metrics_);
    EXPECT_EQ(learned.actor.applied, 1);
    ASSERT_TRUE(learned.actor.policy.has_value());
    EXPECT_EQ(std::ssize(learned.actor.policy->log_probs), share_.tokens());
    EXPECT_EQ(metrics_.Number("actor/ppo_kl"), 0.0);
  });
}

}  // namespace
}  // namespace keel::trainer::rl
