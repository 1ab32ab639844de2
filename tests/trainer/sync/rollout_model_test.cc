// The colocated model that generates: what it is before, between and after updates. That every
// layout's weights arrive, and what becomes of a sync that fails, is weight_sync_test.cc's.

#include "trainer/sync/rollout_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/sync/prompts.h"
#include "trainer/engine/weights_digest.h"

namespace keel::trainer {
namespace {

using keel::testing::RunRanks;
using keel::testing::TinyConfig;
using ::testing::AllOf;
using ::testing::HasSubstr;

model::HfConfig Shape() { return TinyConfig(false, model::Family::kLlama); }

RolloutModelOptions Options(int tp) {
  RolloutModelOptions options;
  options.tp = tp;
  options.engine.max_model_len = 48;
  options.engine.scheduler.max_num_seqs = 4;
  return options;
}

std::vector<std::vector<int32_t>> TextsOf(RolloutModel& model) {
  model.Prepare();
  std::vector<std::vector<int32_t>> texts;
  for (const auto& completion : model.engine().Generate(Prompts()))
    texts.push_back(completion.tokens);
  model.Leave();
  return texts;
}

// What `model` says when it is asked to generate; empty: it does.
std::string RefusalOf(RolloutModel& model) {
  try {
    TextsOf(model);
  } catch (const Error& error) {
    return error.status().message();
  }
  return "";
}

TEST(RolloutModelTest, TheWorldDividesIntoReplicasOfNeighbours) {
  for (const int tp : {1, 2, 4}) {
    RunRanks(2, 2, 1, [&](parallel::ParallelContext& context) {
      TrainEngine engine(context, Shape(), {});
      engine.Initialize(5);
      RolloutModel model(context, Shape(), engine, Options(tp));
      EXPECT_EQ(model.replicas(), 4 / tp);
      EXPECT_EQ(model.replica(), context.rank() / tp);
      EXPECT_EQ(model.leads(), context.rank() % tp == 0);
      EXPECT_EQ(model.group().size(), tp);
      EXPECT_EQ(model.aliased(), tp == 2);
    });
  }
}

TEST(RolloutModelTest, AWorldThatDoesNotDivideIsRefused) {
  RunRanks(2, 2, 1, [](parallel::ParallelContext& context) {
    TrainEngine engine(context, Shape(), {});
    for (const int tp : {3, 0}) {
      try {
        RolloutModel model(context, Shape(), engine, Options(tp));
        ADD_FAILURE() << "made over " << tp;
      } catch (const Error& error) {
        EXPECT_EQ(error.status().code(), StatusCode::kConfig);
        EXPECT_THAT(error.status().message(),
                    AllOf(HasSubstr("actor_rollout_ref.rollout.tensor_model_parallel_size"),
                          HasSubstr("4 ranks do not divide")));
      }
    }
  });
}

// The version says how often weights came, and whose they are.
TEST(RolloutModelTest, AVersionIsOfTheWeightsThatGenerate) {
  for (const int tp : {2, 1}) {
    RunRanks(2, 1, 1, [&](parallel::ParallelContext& context) {
      TrainEngine engine(context, Shape(), {});
      engine.Initialize(5);
      RolloutModel model(context, Shape(), engine, Options(tp));
      EXPECT_EQ(model.version().number, 0);
      EXPECT_EQ(model.version().digest, 0U);
      model.Corrupt();
      const WeightUpdate update = model.Update();
      EXPECT_EQ(update.blocked, update.seconds);
      EXPECT_EQ(model.version().number, 1);
      const uint64_t digest = WeightsDigest(engine, TrainEngine::Which::kAll, context.world());
      EXPECT_EQ(model.version().digest, model.aliased() ? 0 : digest);
      const auto texts = TextsOf(model);
      // Other weights, another digest and other texts; then the first ones again.
      engine.Initialize(6);
      model.Update();
      EXPECT_EQ(model.version().number, 2);
      EXPECT_NE(TextsOf(model), texts);
      engine.Initialize(5);
      model.Restore({3, digest});
      EXPECT_EQ(model.version().number, 3);
      EXPECT_EQ(model.version().digest, digest);
      EXPECT_EQ(TextsOf(model), texts);
    });
  }
}

TEST(RolloutModelTest, OtherWeightsThanThoseThatWereSavedAreRefused) {
  for (const int pp : {1, 2}) {
    RunRanks(2, 1, pp, [&](parallel::ParallelContext& context) {
      TrainEngine engine(context, Shape(), {});
      engine.Initialize(5);
      RolloutModel model(context, Shape(), engine, Options(2));
      const uint64_t digest = WeightsDigest(engine, TrainEngine::Which::kAll, context.world());
      model.Restore({41, digest});
      EXPECT_EQ(model.version().number, 41);
      model.Update();
      EXPECT_EQ(model.version().number, 42);
      try {
        model.Restore({41, digest + 1});
        ADD_FAILURE() << "restored";
      } catch (const Error& error) {
        EXPECT_EQ(error.status().code(), StatusCode::kDataLoss);
        EXPECT_THAT(error.status().message(), HasSubstr("weights of version 41: digest"));
      }
      EXPECT_EQ(model.version().number, 42);
      // A checkpoint that has no digest, of an older release.
      model.Restore({43, 0});
      EXPECT_EQ(model.version().number, 43);
    });
  }
}

// While the model is trained, weights of its own are given back, and nothing is generated by what
// lies there.
TEST(RolloutModelTest, WeightsThatWereReleasedComeWithTheNextUpdate) {
  for (const int tp : {2, 1}) {
    for (const bool releases : {true, false}) {
      RunRanks(2, 1, 1, [&](parallel::ParallelContext& context) {
        TrainEngine engine(context, Shape(), {});
        engine.Initialize(5);
        RolloutModelOptions options = Options(tp);
        options.releases = releases;
        RolloutModel model(context, Shape(), engine, options);
        model.Update();
        const auto texts = TextsOf(model);
        model.ReleaseWeights();
        if (releases && !model.aliased()) {
          EXPECT_THAT(RefusalOf(model), HasSubstr("released until the next update"));
        } else {
          EXPECT_EQ(TextsOf(model), texts);
        }
        context.world().Barrier();
        model.Update();
        EXPECT_EQ(TextsOf(model), texts);
      });
    }
  }
}

TEST(RolloutModelTest, ASyncThatIsToProveItselfFindsEveryWeightReplaced) {
  RunRanks(2, 1, 1, [](parallel::ParallelContext& context) {
    TrainEngine engine(context, Shape(), {});
    engine.Initialize(5);
    for (const bool staged : {false, true}) {
      RolloutModelOptions options = Options(1);
      options.staged = staged;
      RolloutModel model(context, Shape(), engine, options);
      model.Update();
      const auto texts = TextsOf(model);
      model.ReleaseWeights();
      model.Corrupt();
      model.Update();
      EXPECT_EQ(TextsOf(model), texts);
      context.world().Barrier();
    }
  });
}

}  // namespace
}  // namespace keel::trainer
