// What RL asks of a model over a step's responses: log-probabilities or values of every response
// token, on rank 0, which makes of them what they are worth. Collective over all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/groups/context.h"
#include "trainer/algorithms/loss_totals.h"
#include "trainer/engine/train_engine.h"
#include "trainer/rl/learn/micro_batches.h"

namespace keel::trainer::rl {

// Log-probabilities [N] of the response tokens under the engine's weights at `temperature`; with
// the micro-batches of `updates`, in which the engine will train. With `entropy` also the policy's
// entropies [N]; with `squares` the sum over the vocabulary of its squared probabilities at each
// token [N]. Tokens in none of `updates` stay 0. Nothing on ranks other than 0.
struct TokenLogProbs {
  std::vector<float> log_probs;
  std::vector<float> entropies;
  std::vector<float> sum_pi_squared;
};
TokenLogProbs ResponseLogProbs(TrainEngine& engine, parallel::ParallelContext& context,
                               const BatchShare& share, const std::vector<MiniBatch>& updates,
                               const RlBatchOptions& options, double temperature, bool with_entropy,
                               bool with_squares = false);

// A critic's values [N]: of the state in which each response token was chosen. Likewise.
std::vector<float> ResponseValues(TrainEngine& critic, parallel::ParallelContext& context,
                                  const BatchShare& share, const std::vector<MiniBatch>& updates,
                                  const RlBatchOptions& options);

// Sums them over ranks. Waits for the device.
template <size_t N>
std::array<double, N> SumOverRanks(parallel::ParallelContext& context, at::Device device,
                                   const LossTotals<N>& mine) {
  at::Tensor sums = mine.On(device);
  context.world().AllReduce(sums);
  const std::array<double, N> read = LossTotals<N>(sums).Read();
  context.world().CheckAlive();  // else these are no sums
  return read;
}

}  // namespace keel::trainer::rl
