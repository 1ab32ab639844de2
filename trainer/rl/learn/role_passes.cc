#include "trainer/rl/learn/role_passes.h"

#include "trainer/rl/learn/token_values.h"

namespace keel::trainer::rl {

namespace {

// Calls `take` with the hidden states of each micro-batch on the last stage.
template <typename Take>
void ForEachMicroBatch(TrainEngine& engine, const BatchShare& share,
                       const std::vector<MiniBatch>& updates, const RlBatchOptions& options,
                       Take&& take) {
  for (const MiniBatch& update : updates) {
    const std::vector<RlMicroBatch> micro = MakeRlMicroBatches(share, update, options);
    engine.Evaluate(ModelBatchesOf(micro), [&](int m, const at::Tensor& hidden,
                                               const model::Decoder::ReadyCallback&) {
      take(micro[static_cast<size_t>(m)], hidden);
      return at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(hidden.device()));
    });
  }
}

}  // namespace

TokenLogProbs ResponseLogProbs(TrainEngine& engine, parallel::ParallelContext& context,
                               const BatchShare& share, const std::vector<MiniBatch>& updates,
                               const RlBatchOptions& options, double temperature, bool with_entropy,
                               bool with_squares) {
  TokenValues log_probs, entropies, squares;
  ForEachMicroBatch(
      engine, share, updates, options, [&](const RlMicroBatch& micro, const at::Tensor& hidden) {
        const auto found = engine.decoder().LogProbsWithGradient(hidden, micro.batch.targets,
                                                                 temperature, with_entropy);
        at::Tensor sum_pi_squared;
        if (with_squares) {
          sum_pi_squared =
              engine.decoder().LogSumSquares(hidden, micro.batch.targets, temperature).exp();
        }
        if (context.tp_rank() != 0) return;
        if (with_squares) squares.Add(micro, sum_pi_squared);
        log_probs.Add(micro, found.log_probs);
        if (with_entropy) entropies.Add(micro, found.entropy);
      });
  const int64_t tokens = share.tokens();
  TokenLogProbs result;
  result.log_probs = log_probs.OnRank0(context, options.device, tokens);
  if (with_squares) result.sum_pi_squared = squares.OnRank0(context, options.device, tokens);
  if (with_entropy) result.entropies = entropies.OnRank0(context, options.device, tokens);
  return result;
}

std::vector<float> ResponseValues(TrainEngine& critic, parallel::ParallelContext& context,
                                  const BatchShare& share, const std::vector<MiniBatch>& updates,
                                  const RlBatchOptions& options) {
  TokenValues values;
  ForEachMicroBatch(critic, share, updates, options,
                    [&](const RlMicroBatch& micro, const at::Tensor& hidden) {
                      const at::Tensor found = critic.decoder().Values(hidden);
                      if (context.tp_rank() == 0) values.Add(micro, found);
                    });
  return values.OnRank0(context, options.device, share.tokens());
}

}  // namespace keel::trainer::rl
