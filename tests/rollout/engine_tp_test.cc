// The engine split over tensor-parallel ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "model/ops/decode_ops.h"
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
        Case{3, true, model::Family::kQwen3Moe}}) {
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
        double worst = 0;
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(completions[i].tokens, expected[i].tokens) << "rank " << context.tp_rank();
          std::vector<int32_t> tokens = requests[i].prompt;
          tokens.insert(tokens.end(), completions[i].tokens.begin(), completions[i].tokens.end());
          const auto trainer = model.TrainerLogProbs(tokens);
          for (size_t t = 0; t < completions[i].tokens.size(); ++t) {
            worst = std::max(
                worst, std::abs(static_cast<double>(completions[i].log_probs[t] -
                                                    trainer[requests[i].prompt.size() - 1 + t])));
          }
        }
        EXPECT_LE(worst, 1e-5);  // R22
      });
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
      model::SumOverRanks(x, context.tp(), true);
      EXPECT_TRUE(at::equal(x, at::ones_like(x))) << rows << " rows";
    }
  });
}

}  // namespace
}  // namespace keel::rollout
