#include "trainer/rl/role_engines.h"

#include <string>

#include "trainer/engine/weights_digest.h"
#include "trainer/inputs/model_weights.h"

namespace keel::trainer::rl {

RoleEngines::RoleEngines(const Config& config, const ModelSource& source,
                         const TrainEngineOptions& actor, Job& job)
    : job_(job),
      c_(config),
      actor_(std::make_unique<TrainEngine>(job.context(), source.config, actor)) {
  job_.FillWeights(source, *actor_);
  if (HasReference(c_) && !actor_->has_adapters()) BuildReference(source, actor);
  if (HasCritic(c_)) BuildCritic(source, actor);
  actor_->OffloadIdle();
  if (ref_) ref_->OffloadIdle();
  if (critic_) critic_->OffloadIdle();
}

// The weights that the run starts from, for good: they are not saved, only their digest. Unless
// they follow the policy: then they are state.
void RoleEngines::BuildReference(const ModelSource& source, TrainEngineOptions options) {
  options.inference = true;
  options.recompute = false;
  options.offload = {c_.actor_rollout_ref.ref.megatron.param_offload, false, false};
  ref_ = std::make_unique<TrainEngine>(job_.context(), source.config, options);
  job_.FillWeights(source, *ref_);
  ref_digest_ = WeightsDigest(*ref_, TrainEngine::Which::kAll, job_.context().world());
}

void RoleEngines::BuildCritic(const ModelSource& source, TrainEngineOptions options) {
  const OptimSection& optim = c_.critic.optim;
  options.arithmetic = parallel::Arithmetic::kTraining;  // nobody else says values
  options.value_head = true;
  options.adamw = {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
  options.clip_grad = optim.clip_grad;
  options.offload = {c_.critic.megatron.param_offload, c_.critic.megatron.grad_offload,
                     c_.critic.megatron.optimizer_offload};
  model::HfConfig whole = source.config;
  whole.adapter = {};  // all of a critic learns
  critic_ = std::make_unique<TrainEngine>(job_.context(), whole, options);
  critic_->Initialize(static_cast<uint64_t>(c_.trainer.seed));
  const std::string directory = c_.critic.model.path.value_or(source.directory);
  if (directory.empty()) return;
  critic_->LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    // A language model has no value head: it keeps its random weights.
    ThrowIfError(ImportWeights(directory, whole, model::Head::kValue, tables.model));
    return {.weights = true};
  });
}

Roles RoleEngines::roles() const {
  TrainEngine* const ref = HasReference(c_) && actor_->has_adapters() ? actor_.get() : ref_.get();
  return {actor_.get(), ref, critic_.get()};
}

std::vector<Task::Role> RoleEngines::Saved() const {
  std::vector<Task::Role> saved = {{"actor", actor_.get()}};
  if (critic_) saved.push_back({"critic", critic_.get()});
  if (c_.actor_rollout_ref.ref.sync_ref_model) saved.push_back({"ref", ref_.get()});
  return saved;
}

}  // namespace keel::trainer::rl
