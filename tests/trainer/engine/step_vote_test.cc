#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;
using keel::testing::TinyConfig;

StepResult Update(TrainEngine& engine, parallel::ParallelContext& context) {
  const auto rows = RowsOfStep(0);
  return engine.Step(MicroBatches(rows, context.dp_rank(), context.layout().dp(), 1, 1),
                     LossTokens(rows), 1e-3, 1);
}

// PPO's step: critic and actor hold the same vote.
TEST(StepVoteTest, WhatOneRankWantsAtAnyUpdateAllKnowUntilTheNextStep) {
  keel::testing::RunRanks(1, 2, 1, [](parallel::ParallelContext& context) {
    StepVote vote;
    bool asked = false;
    vote.set_mine([&] { return StepVote::Wishes{asked && context.rank() == 1, false}; });
    TrainEngineOptions options;
    options.vote = &vote;
    const auto config = TinyConfig(false, model::Family::kLlama);
    TrainEngine critic(context, config, options), actor(context, config, options);
    critic.Initialize(1);
    actor.Initialize(2);

    vote.Begin();
    Update(critic, context);
    EXPECT_FALSE(vote.stop());
    asked = true;  // between the updates
    Update(actor, context);
    EXPECT_TRUE(vote.stop());
    EXPECT_FALSE(vote.busy());
    asked = false;
    Update(actor, context);
    EXPECT_TRUE(vote.stop()) << "of this step it was wanted";
    vote.Begin();
    EXPECT_FALSE(vote.stop());
  });
}

TEST(StepVoteTest, TheVoteIsInNoNumberOfTheTraining) {
  keel::testing::RunRanks(1, 2, 1, [](parallel::ParallelContext& context) {
    StepVote vote;
    vote.set_mine([] { return StepVote::Wishes{true, true}; });
    TrainEngineOptions options;
    const auto config = TinyConfig(false, model::Family::kLlama);
    TrainEngine alone(context, config, options);
    options.vote = &vote;
    TrainEngine voting(context, config, options);
    alone.Initialize(1);
    voting.Initialize(1);
    const StepResult without = Update(alone, context), with = Update(voting, context);
    EXPECT_EQ(without.loss, with.loss);
    EXPECT_EQ(without.grad_norm, with.grad_norm);
    EXPECT_TRUE(vote.stop() && vote.busy());
  });
}

}  // namespace
}  // namespace keel::trainer
