#include "trainer/rl/role_passes.h"

#include <cstring>

namespace keel::trainer::rl {

namespace {

// Calls `take` with the hidden states of each micro-batch on the last stage.
template <typename Take>
void ForEachMicroBatch(TrainEngine& engine, const RolloutBatch& batch,
                       const std::vector<MiniBatch>& updates, const RlBatchOptions& options,
                       Take&& take) {
  for (const MiniBatch& update : updates) {
    const std::vector<RlMicroBatch> micro = MakeRlMicroBatches(batch, update, options);
    engine.Evaluate(ModelBatchesOf(micro), [&](int m, const at::Tensor& hidden,
                                               const model::Decoder::ReadyCallback&) {
      take(micro[static_cast<size_t>(m)], hidden);
      return at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(hidden.device()));
    });
  }
}

}  // namespace

void SumOverRanks(parallel::ParallelContext& context, at::Device device, std::span<float> values) {
  if (context.layout().world() == 1 || values.empty()) return;
  at::Tensor host = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
  at::Tensor sums = device.is_cpu() ? host : host.to(device);
  context.world().AllReduce(sums);
  if (!device.is_cpu()) host.copy_(sums);
}

std::vector<double> SumOverRanks(parallel::ParallelContext& context, at::Device device,
                                 std::vector<double> values) {
  at::Tensor sums = at::tensor(values, at::kDouble).to(device);
  context.world().AllReduce(sums);
  sums = sums.cpu();
  const double* const data = sums.const_data_ptr<double>();
  return {data, data + sums.numel()};
}

TokenLogProbs ResponseLogProbs(TrainEngine& engine, parallel::ParallelContext& context,
                               const RolloutBatch& batch, const std::vector<MiniBatch>& updates,
                               const RlBatchOptions& options, double temperature,
                               bool with_entropy) {
  const auto tokens = static_cast<size_t>(batch.response_tokens());
  TokenLogProbs result;
  result.log_probs.assign(tokens, 0);
  if (with_entropy) result.entropies.assign(tokens, 0);
  ForEachMicroBatch(engine, batch, updates, options,
                    [&](const RlMicroBatch& micro, const at::Tensor& hidden) {
                      const auto found = engine.decoder().LogProbsWithGradient(
                          hidden, micro.batch.targets, temperature, with_entropy);
                      if (context.tp_rank() != 0) return;
                      micro.Gather(found.log_probs, result.log_probs);
                      if (with_entropy) micro.Gather(found.entropy, result.entropies);
                    });
  SumOverRanks(context, options.device, result.log_probs);
  if (with_entropy) SumOverRanks(context, options.device, result.entropies);
  return result;
}

std::vector<float> ResponseValues(TrainEngine& critic, parallel::ParallelContext& context,
                                  const RolloutBatch& batch, const std::vector<MiniBatch>& updates,
                                  const RlBatchOptions& options) {
  std::vector<float> values(static_cast<size_t>(batch.response_tokens()), 0);
  ForEachMicroBatch(critic, batch, updates, options,
                    [&](const RlMicroBatch& micro, const at::Tensor& hidden) {
                      const at::Tensor found = critic.decoder().Values(hidden);
                      if (context.tp_rank() == 0) micro.Gather(found, values);
                    });
  SumOverRanks(context, options.device, values);
  return values;
}

}  // namespace keel::trainer::rl
