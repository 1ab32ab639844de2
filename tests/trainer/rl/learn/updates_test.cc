#include "trainer/rl/learn/updates.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/rl/learn/tiny_batch.h"

namespace keel::trainer::rl {
namespace {

TEST(UpdateSumsTest, OverEpochsCountsAddUpAndMetricsAreMeans) {
  UpdateSums all;
  for (const double value : {1.0, 2.0, 6.0}) {
    UpdateSums one;
    one.metrics["actor/pg_loss"] = value;
    one.applied = 2;
    one.skipped = 1;
    one.grad_norm = value;
    all.AddEpoch(one, all.applied / 2);
  }
  EXPECT_EQ(all.metrics.at("actor/pg_loss"), 3.0);
  EXPECT_EQ(all.applied, 6);
  EXPECT_EQ(all.skipped, 3);
  EXPECT_EQ(all.grad_norm, 6.0);
}

// Where nobody needs the policy's log-probabilities before the update, the pass that finds them is
// left out: the update's own forward gives them, and the same training.
TEST(UpdateActorTest, ThePolicyThatActsIsTheOneThatAPassBeforeWouldFind) {
  keel::testing::RunRanks(1, 2, 1, [](parallel::ParallelContext& context) {
    const BatchShare batch = BatchShare::All(TinyBatch(4));
    const auto tokens = static_cast<size_t>(batch.tokens());
    std::vector<float> advantages(tokens);
    for (size_t i = 0; i < tokens; ++i) advantages[i] = i % 3 == 0 ? 1.0F : -0.5F;
    EpochUpdates epoch;
    epoch.updates = CutIntoMiniBatches(batch.outline(), {4, false, 0}, 1, 0);
    epoch.options.micro_batch_size = 2;
    epoch.options.dp_rank = context.dp_rank();
    epoch.options.dp = 2;
    epoch.lr = 1e-2;
    const auto config = keel::testing::TinyConfig(false, model::Family::kLlama);

    TrainEngine asked(context, config, {}), acting(context, config, {});
    asked.Initialize(5);
    acting.Initialize(5);
    // On rank 0; here all ranks hold all.
    const auto on_all = [&](std::vector<float> values) {
      at::Tensor all = at::zeros({static_cast<int64_t>(tokens)});
      if (context.rank() == 0) all = at::tensor(values);
      context.world().Broadcast(all, 0);
      return std::vector<float>(all.data_ptr<float>(), all.data_ptr<float>() + all.numel());
    };
    const TokenLogProbs before =
        ResponseLogProbs(asked, context, batch, epoch.updates, epoch.options, 1.0, true);
    const std::vector<float> old = on_all(before.log_probs);
    ActorUpdate update;
    update.scale_factor = 8;
    update.targets.advantages = advantages;
    update.targets.old_log_probs = old;
    const UpdateSums with = UpdateActor(asked, context, batch, epoch, update);
    update.targets.old_log_probs = {};
    update.acts = true;
    update.tells = true;
    const UpdateSums without = UpdateActor(acting, context, batch, epoch, update);

    EXPECT_EQ(without.metrics, with.metrics);
    EXPECT_EQ(without.metrics.at("actor/ppo_kl"), 0.0);
    EXPECT_GT(without.grad_norm, 0);
    EXPECT_EQ(without.applied, 1);
    ASSERT_TRUE(without.policy.has_value());
    EXPECT_EQ(without.policy->log_probs, before.log_probs);
    EXPECT_EQ(without.policy->entropies, before.entropies);
    EXPECT_EQ(before.log_probs.empty(), context.rank() != 0);
    EXPECT_FALSE(with.policy.has_value());
    const auto after = [&](TrainEngine& engine) {
      return ResponseLogProbs(engine, context, batch, epoch.updates, epoch.options, 1.0, false)
          .log_probs;
    };
    EXPECT_EQ(after(acting), after(asked));
    EXPECT_NE(on_all(after(acting)), old);
  });
}

}  // namespace
}  // namespace keel::trainer::rl
