#include "trainer/rl/learn/updates.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trainer/algorithms/entropy_choice.h"
#include "trainer/rl/learn/token_values.h"

namespace keel::trainer::rl {

namespace {

bool CountsSums(TrainEngine& engine, parallel::ParallelContext& context) {
  return engine.decoder().last_stage() && context.tp_rank() == 0;
}

bool ChoosesByEntropy(const ActorUpdate& update) { return update.loss.top_entropy_quantile < 1; }

// The tokens of the mini-batch that the loss treats apart, of this rank's share [H], above 0, the
// others 0; empty where the loss looks at no more than a sequence. Rank 0, which has the values of
// all tokens, chooses. `current_is_old`: the engine's weights are those of targets.old_log_probs.
// Collective over all ranks.
std::vector<float> ChosenTokens(TrainEngine& actor, parallel::ParallelContext& context,
                                const BatchShare& share, const MiniBatch& mini_batch,
                                const RlBatchOptions& options, const ActorUpdate& update,
                                bool current_is_old) {
  const bool by_entropy = ChoosesByEntropy(update);
  if (!TraitsOf(update.loss.mode).covariance && !by_entropy) return {};
  TokenLogProbs current;
  if (!current_is_old) {
    current = ResponseLogProbs(actor, context, share, {mini_batch}, options, update.temperature,
                               by_entropy);
  }
  std::vector<float> chosen;
  if (context.rank() == 0) {
    std::vector<int64_t> responses = mini_batch;
    std::sort(responses.begin(), responses.end());
    std::vector<int64_t> tokens;
    const std::vector<int64_t>& boundaries = share.boundaries();
    for (const int64_t s : responses) {
      const auto at = static_cast<size_t>(s);
      for (int64_t t = boundaries[at]; t < boundaries[at + 1]; ++t) tokens.push_back(t);
    }
    const ActorUpdate::Whole& whole = update.whole;
    const auto now = [&](std::span<const float> old, const std::vector<float>& found) {
      return current_is_old ? old : std::span<const float>(found);
    };
    std::vector<uint8_t> found;
    if (by_entropy) {
      found = ChooseByEntropy(now(whole.old_entropies, current.entropies), whole.mask, tokens,
                              update.loss.top_entropy_quantile);
    } else {
      const CovarianceInputs inputs{now(whole.old_log_probs, current.log_probs),
                                    whole.old_log_probs, whole.advantages, whole.mask, tokens};
      found = ChooseByCovariance(update.loss.mode, inputs, update.loss.clip_ratio_low,
                                 update.loss.clip_ratio_high, update.loss.covariance, update.draw);
    }
    chosen.assign(found.begin(), found.end());
    // The bonus is a mean over the tokens that are learnt from, not over all.
    if (by_entropy) {
      double all = 0, some = 0;
      for (const int64_t t : tokens) {
        all += whole.mask[static_cast<size_t>(t)] != 0;
        some += chosen[static_cast<size_t>(t)];
      }
      for (float& one : chosen) one *= static_cast<float>(all / std::max(1.0, some));
    }
  }
  share.HandOutValues(context, options.device, std::array{&chosen});
  return chosen;
}

// Of the balance loss of experts: each micro-batch weighs as many as its tokens of the policy.
at::Tensor BalanceShares(TrainEngine& engine, const std::vector<RlMicroBatch>& micro,
                         const LossDenominators& denominators) {
  if (engine.decoder().config().moe.experts == 0) return {};
  std::vector<at::Tensor> tokens;
  for (const RlMicroBatch& one : micro) tokens.push_back(one.layout.mask.sum());
  return at::stack(tokens).to(at::kDouble) /
         static_cast<double>(std::max<int64_t>(1, denominators.tokens));
}

// Runs an epoch; `loss` makes a micro-batch's share from its mini-batch's denominators, after
// `begin` has seen the mini-batch and before `end` sees what came of it. Metrics of the model
// itself stand under `role`.
template <typename Begin, typename Loss, typename End>
UpdateSums Run(TrainEngine& engine, const BatchShare& share, const EpochUpdates& epoch,
               const std::string& role, double scale_factor, Begin&& begin, Loss&& loss,
               End&& end) {
  UpdateSums result;
  for (const MiniBatch& update : epoch.updates) {
    begin(update);
    const std::vector<RlMicroBatch> micro = MakeRlMicroBatches(share, update, epoch.options);
    const LossDenominators denominators = DenominatorsOf(share.outline(), update, scale_factor);
    const StepResult step = engine.Step(
        ModelBatchesOf(micro),
        [&](int m, const at::Tensor& hidden, const model::Decoder::ReadyCallback& on_ready) {
          return loss(micro[static_cast<size_t>(m)], hidden, denominators, on_ready);
        },
        BalanceShares(engine, micro, denominators), epoch.lr, epoch.t + result.applied + 1);
    const auto updates = static_cast<double>(epoch.updates.size());
    result.grad_norm += step.grad_norm / updates;
    if (step.routers) {
      for (const auto& [name, value] : step.routers->Metrics())
        result.metrics[role + name] += value / updates;
    }
    ++(step.skipped ? result.skipped : result.applied);
    result.moves += step.moves;
    end(step);
  }
  return result;
}

}  // namespace

void UpdateSums::AddEpoch(UpdateSums one, int64_t epochs) {
  applied += one.applied;
  skipped += one.skipped;
  grad_norm = one.grad_norm;
  moves += one.moves;
  if (one.policy) policy = std::move(one.policy);
  for (const auto& [name, value] : one.metrics) {
    double& mean = metrics[name];
    mean = epochs == 0
               ? value
               : (mean * static_cast<double>(epochs) + value) / static_cast<double>(epochs + 1);
  }
}

UpdateSums UpdateActor(TrainEngine& actor, parallel::ParallelContext& context,
                       const BatchShare& share, const EpochUpdates& epoch,
                       const ActorUpdate& update) {
  const PolicyTargets& targets = update.targets;
  TokenValues log_probs, entropies;
  PolicyLossSums::Totals totals, of_update;  // of all, and of the one that is under way
  std::vector<float> chosen;
  PolicyLossOptions options = update.loss;
  const bool counts = CountsSums(actor, context);
  UpdateSums result = Run(
      actor, share, epoch, "actor/", update.scale_factor,
      [&](const MiniBatch& mini_batch) {
        chosen = ChosenTokens(actor, context, share, mini_batch, epoch.options, update,
                              update.begins_old && &mini_batch == &epoch.updates.front());
        if (update.entropy != nullptr) options.entropy_coeff = update.entropy->Applied();
      },
      [&](const RlMicroBatch& micro, const at::Tensor& hidden, const LossDenominators& denominators,
          const auto& on_ready) {
        const auto current = actor.decoder().LogProbsWithGradient(
            hidden, micro.batch.targets, update.temperature, true, on_ready);
        PolicyLossInputs inputs;
        inputs.layout = micro.layout;
        inputs.log_probs = current.log_probs;
        inputs.entropy = current.entropy;
        inputs.old_log_probs =
            update.acts ? current.log_probs.detach() : micro.Spread(targets.old_log_probs);
        if (update.tells && counts) {
          log_probs.Add(micro, current.log_probs);
          entropies.Add(micro, current.entropy);
        }
        inputs.advantages = micro.Spread(targets.advantages);
        if (!targets.ref_log_probs.empty())
          inputs.ref_log_probs = micro.Spread(targets.ref_log_probs);
        if (!targets.rollout_is_weights.empty())
          inputs.rollout_is_weights = micro.Spread(targets.rollout_is_weights);
        if (!targets.sampling_log_probs.empty())
          inputs.sampling_log_probs = micro.Spread(targets.sampling_log_probs);
        if (TraitsOf(update.loss.mode).covariance) inputs.chosen = micro.Spread(chosen);
        if (ChoosesByEntropy(update)) inputs.uncertain = micro.Spread(chosen);
        const PolicyLossResult part = PolicyLoss(inputs, options, denominators);
        if (counts) {
          totals += part.totals;
          of_update += part.totals;
        }
        return part.loss;
      },
      [&](const StepResult& step) {
        const auto of_this = std::exchange(of_update, {});
        if (update.entropy == nullptr) return;
        const PolicyLossSums seen =
            PolicyLossSums::Of(SumOverRanks(context, epoch.options.device, of_this));
        if (!step.skipped && seen.learnt_tokens > 0)
          update.entropy->Update(seen.learnt_entropy / seen.learnt_tokens);
      });
  if (update.tells) {
    const int64_t tokens = share.tokens();
    result.policy.emplace();
    result.policy->log_probs = log_probs.OnRank0(context, epoch.options.device, tokens);
    result.policy->entropies = entropies.OnRank0(context, epoch.options.device, tokens);
  }
  PolicyLossSums sums = PolicyLossSums::Of(SumOverRanks(context, epoch.options.device, totals));
  const auto n = static_cast<double>(std::max<size_t>(1, epoch.updates.size()));
  for (double* mean : {&sums.pg_loss, &sums.entropy, &sums.kl_loss}) *mean /= n;
  result.metrics.merge(sums.Metrics(update.loss));
  result.metrics["actor/grad_norm"] = result.grad_norm;
  return result;
}

UpdateSums UpdateCritic(TrainEngine& critic, parallel::ParallelContext& context,
                        const BatchShare& share, const EpochUpdates& epoch,
                        const CriticUpdate& update) {
  const ValueTargets& targets = update.targets;
  ValueLossSums::Totals totals;
  const bool counts = CountsSums(critic, context);
  UpdateSums result = Run(
      critic, share, epoch, "critic/", update.scale_factor, [](const MiniBatch&) {},
      [&](const RlMicroBatch& micro, const at::Tensor& hidden, const LossDenominators& denominators,
          const auto& on_ready) {
        ValueLossInputs inputs;
        inputs.layout = micro.layout;
        inputs.values = critic.decoder().Values(hidden, on_ready);
        inputs.old_values = micro.Spread(targets.old_values);
        inputs.returns = micro.Spread(targets.returns);
        const ValueLossResult part = ValueLoss(inputs, update.loss, denominators);
        if (counts) totals += part.totals;
        return part.loss;
      },
      [](const StepResult&) {});
  ValueLossSums sums = ValueLossSums::Of(SumOverRanks(context, epoch.options.device, totals));
  sums.vf_loss /= static_cast<double>(std::max<size_t>(1, epoch.updates.size()));
  result.metrics.merge(sums.Metrics());
  result.metrics["critic/grad_norm"] = result.grad_norm;
  return result;
}

}  // namespace keel::trainer::rl
