// The engine split over tensor-parallel ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "parallel/tensor/regions.h"
#include "rollout/engine.h"
#include "tests/rollout/rollout_model.h"
#include "tests/support/ranks.h"

namespace keel::rollout {
namespace {

using testing::MixedRequests;
using testing::RolloutModel;
using testing::RunRanks;

// With three and four ranks there are fewer key-value heads than ranks: neighbours hold the same
// one.
TEST(EngineTpTest, EveryRankChoosesTheTokensOfOneRank) {
  struct Case {
    int tp;
    bool sequence_parallel;
    model::Family family = model::Family::kQwen3;
  };
  for (const auto& [tp, sequence_parallel, family] :
       {Case{2, false}, Case{2, true}, Case{3, true}, Case{4, false},
        Case{3, true, model::Family::kQwen3Moe}, Case{3, true, model::Family::kQwen35},
        Case{2, false, model::Family::kQwen3Next}, Case{2, true, model::Family::kGptNeox},
        Case{3, false, model::Family::kCohere}, Case{4, true, model::Family::kGpt2},
        Case{3, true, model::Family::kPhi}}) {
    for (const bool tied : {false, true}) {
      const auto requests = MixedRequests(24, 1.0);
      RolloutModel whole(family, tied);
      Engine engine = whole.MakeEngine();
      const auto expected = engine.Generate(requests);
      RunRanks(tp, 1, 1, [&, sp = sequence_parallel, of = family](auto& context) {
        RolloutModel model(of, tied, at::kFloat, context.tp(), sp);
        EngineOptions options;
        options.logprobs_mode = LogProbsMode::kRaw;
        // Each rank has memory for another number of blocks.
        options.kv_cache_bytes = 200'000 + 50'000 * context.tp_rank();
        Engine part = model.MakeEngine(options);
        const auto completions = part.Generate(requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_EQ(completions[i].tokens, expected[i].tokens) << "rank " << context.tp_rank();
        EXPECT_LE(model.WorstGap(requests, completions), model.RoundingGap());  // R22
      });
    }
  }
}

// With more than two ranks, whose sums have more than one order, too; and with parts of a
// vocabulary that are not as large.
TEST(EngineTpTest, LogProbabilitiesAreTheTrainersToTheBit) {
  for (const int tp : {2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const model::Family family :
           {model::Family::kOlmo2, model::Family::kQwen3Moe, model::Family::kDeepseekV3,
            model::Family::kQwen35, model::Family::kGptNeox, model::Family::kGpt2,
            model::Family::kPhi}) {
        RunRanks(tp, 1, 1, [&](auto& context) {
          RolloutModel model(family, false, at::kBFloat16, context.tp(), sequence_parallel,
                             parallel::Arithmetic::kBatchInvariant);
          EngineOptions options;
          options.batch_invariant = true;
          Engine engine = model.MakeEngine(options);
          const auto requests = MixedRequests(12, 0.7);
          EXPECT_EQ(model.WorstGap(requests, engine.Generate(requests), 0.7), 0)
              << "TP " << tp << ", rank " << context.tp_rank();
        });
      }
    }
  }
}

// R4: the vocabulary of 131 leaves a row of padding on the second rank.
TEST(EngineTpTest, ThePaddingOfTheVocabularyIsNeverChosen) {
  RunRanks(2, 1, 1, [&](parallel::ParallelContext& context) {
    RolloutModel model(model::Family::kLlama, false, at::kFloat, context.tp(), false);
    if (context.tp_rank() == 1) {
      const at::NoGradGuard no_grad;
      for (parallel::Parameter* p : model.decoder().parameters()) {
        if (p->name == "head.weight") p->value[65].fill_(1e4);  // 66 rows a rank
      }
    }
    Engine engine = model.MakeEngine();
    for (const double temperature : {0.0, 2.0}) {
      for (const Completion& c : engine.Generate(MixedRequests(32, temperature))) {
        ASSERT_TRUE(c.error.ok()) << c.error.message();
        for (const int32_t token : c.tokens) EXPECT_LT(token, 131);
      }
    }
  });
}

TEST(EngineTpTest, CompanionsChangeNoBitOfALogProbability) {
  RunRanks(2, 1, 1, [&](parallel::ParallelContext& context) {
    RolloutModel model(model::Family::kLlama, true, at::kBFloat16, context.tp(), false);
    const auto requests = MixedRequests(12, 1.0);
    EngineOptions options;
    options.batch_invariant = true;
    Engine together = model.MakeEngine(options);
    const auto all = together.Generate(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      Engine alone = model.MakeEngine(options);
      const auto one = alone.Generate({requests[i]});
      EXPECT_EQ(one[0].tokens, all[i].tokens);
      EXPECT_EQ(one[0].log_probs, all[i].log_probs);
    }
  });
}

TEST(EngineTpTest, SumsOverManyRanksAreInTheirOrderWhateverTheShape) {
  RunRanks(3, 1, 1, [&](parallel::ParallelContext& context) {
    // In another order 1e8 - 1e8 + 1 is 0 or 1.
    const float parts[] = {1e8f, -1e8f, 1.0f};
    for (const int64_t rows : {1, 7, 40}) {
      at::Tensor x = at::full({rows, 33}, parts[context.tp_rank()]);
      parallel::SumOverRanks(x, context.tp(), true);
      EXPECT_TRUE(at::equal(x, at::ones_like(x))) << rows << " rows";
    }
  });
}

}  // namespace
}  // namespace keel::rollout
