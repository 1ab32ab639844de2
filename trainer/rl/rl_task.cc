#include "trainer/rl/rl_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "rewards/verifier_factory.h"
#include "trainer/data/prompt_data.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/rl/experience.h"
#include "trainer/rl/learner.h"
#include "trainer/rl/response_source.h"
#include "trainer/rl/reward_errors.h"
#include "trainer/rl/rl_state.h"
#include "trainer/rl/rollout_worker.h"
#include "trainer/rl/validation.h"
#include "trainer/run/task.h"
#include "trainer/sync/rollout_model.h"
#include "trainer/sync/rollout_settings.h"

namespace keel::trainer::rl {

namespace {

// For the console: samples without a score, if there are any.
std::string ErrorsText(int64_t errors, int64_t samples) {
  return errors == 0 ? "" : fmt::format("  errors {}/{}", errors, samples);
}

// Validation draws from streams that no training prompt uses.
constexpr int64_t kValidationPositions = int64_t{1} << 62;

class RlTask : public Task {
 public:
  explicit RlTask(Job& job)
      : Task(job),
        actor_config_(job.actor()),
        kl_({c_.algorithm.kl_ctrl.type == "adaptive", c_.algorithm.kl_ctrl.kl_coef,
             c_.algorithm.kl_ctrl.horizon, c_.algorithm.kl_ctrl.target_kl}),
        reward_errors_(rewards::OnRewardErrorOf(c_.reward.on_error), WarnOnRank0()) {}

 private:
  Roles roles() { return {actor_.get(), ref_.get(), critic_.get()}; }
  bool rank0() const { return job_.rank0(); }
  RewardErrors::Warn WarnOnRank0() {
    if (!rank0()) return {};
    return [this](const std::string& text) { job_.log().Warning("{}", text); };
  }

  void LoadData() override {
    RunData<PromptSet> data = ValueOrThrow(LoadPromptData(c_, source_));
    WarnOfData(data.Warnings());
    prompts_ = std::move(data.train);
    val_ = std::move(data.val);
    SetValidation(val_.digest(), val_.size());
    SetData(prompts_.digest(), prompts_.size());
    AddFact("what verifiers read of data.train_files (text, extra_info)",
            "digest " + prompts_.verifiers_digest().ToHex());
    AddFact("what verifiers read of the validation samples (text, extra_info)",
            "digest " + val_.verifiers_digest().ToHex());
    const int64_t batch = c_.data.train_batch_size;
    total_steps_ = c_.trainer.total_training_steps.value_or(std::max<int64_t>(
        1, std::llround(c_.trainer.total_epochs.value_or(1) * static_cast<double>(prompts_.size()) /
                        static_cast<double>(batch))));
    job_.log().Info("data: {} prompts to train on, {} to validate on, {} rows left out; {} steps",
                    prompts_.size(), val_.size(), prompts_.skipped_rows(), total_steps_);
  }

  int RolloutTp() const {
    return static_cast<int>(c_.actor_rollout_ref.rollout.tensor_model_parallel_size.value_or(
        actor_config_.megatron.tensor_model_parallel_size));
  }

  // Actor, reference, critic, and the model that generates.
  void BuildModels() override {
    const TrainEngineOptions actor =
        job_.EngineOptions(actor_config_.megatron, actor_config_.optim);
    batch_options_.dp_rank = job_.context().dp_rank();
    batch_options_.dp = job_.context().layout().dp();
    batch_options_.pad_to_multiple =
        actor.sequence_parallel ? actor_config_.megatron.tensor_model_parallel_size : 1;
    batch_options_.micro_batch_size =
        actor_config_.loss.ppo_micro_batch_size_per_gpu.value_or(c_.data.micro_batch_size_per_gpu);
    batch_options_.device = job_.device();
    actor_ = std::make_unique<TrainEngine>(job_.context(), source_.config, actor);
    job_.FillWeights(source_, *actor_);
    if (actor_config_.loss.use_kl_loss || c_.algorithm.use_kl_in_reward) {
      // The weights that the run starts from, for good: they are not saved, only their digest.
      TrainEngineOptions ref = actor;
      ref.inference = true;
      ref.recompute = false;
      ref.offload = {c_.actor_rollout_ref.ref.megatron.param_offload, false, false};
      ref_ = std::make_unique<TrainEngine>(job_.context(), source_.config, ref);
      job_.FillWeights(source_, *ref_);
      SetReference(*ref_);
    }
    if (c_.critic.enable.value_or(c_.algorithm.adv_estimator == "gae")) BuildCritic(actor);
    actor_->OffloadIdle();
    if (ref_) ref_->OffloadIdle();
    if (critic_) critic_->OffloadIdle();

    RolloutModelOptions rollout;
    const RolloutSection& section = c_.actor_rollout_ref.rollout;
    rollout.tp = RolloutTp();
    rollout.engine = RolloutEngineOptions(c_, source_.config.max_position_embeddings);
    rollout.engine.eos_token_ids.assign(source_.stop_ids.begin(), source_.stop_ids.end());
    const model::Tokenizer* tokenizer = source_.tokenizer.get();
    if (rollout.engine.eos_token_ids.empty() && tokenizer != nullptr && tokenizer->eos())
      rollout.engine.eos_token_ids.push_back(*tokenizer->eos());
    rollout.engine.tokenizer = tokenizer;
    rollout.sync.bucket_bytes = section.checkpoint_engine.update_weights_bucket_megabytes << 20;
    rollout.sync.device = job_.device();
    rollout.staged = section.weight_sync == "staged";
    rollout.releases = section.free_cache_engine;
    rollout_ = std::make_unique<RolloutModel>(job_.context(), source_.config, *actor_, rollout);
    worker_ = std::make_unique<RolloutWorker>(*rollout_, job_.context(), c_.reward, tokenizer,
                                              job_.device());
    responses_ = std::make_unique<ResponseSource>(c_, prompts_, *order_, *rollout_, *worker_,
                                                  reward_errors_, rank0());
    // A replay scores nothing, but what it validates.
    if (!c_.trainer.rollout_replay_dir || val_.size() > 0) worker_->StartVerifiers();
    job_.log().Info(
        "model: {} parameters, {} on this rank's stage; {} rollout replicas of {} ranks{}",
        source_.config.NumParameters(), actor_->decoder().parameters().size(), rollout_->replicas(),
        rollout.tp, rollout_->aliased() ? ", which use the trainer's own memory" : "");
    job_.log().Info("memory: {}", actor_->residency().Report());
    if (rank0())
      for (const std::string& remark : RolloutRemarks(c_)) job_.log().Warning("{}", remark);
  }

  void BuildCritic(const TrainEngineOptions& actor) {
    OptimSection optim;
    optim.lr = c_.critic.optim.lr;
    optim.betas = c_.critic.optim.betas;
    optim.eps = c_.critic.optim.eps;
    optim.weight_decay = c_.critic.optim.weight_decay;
    optim.clip_grad = c_.critic.optim.clip_grad;
    optim.lr_decay_style = c_.critic.optim.lr_decay_style;
    optim.lr_warmup_steps = c_.critic.optim.lr_warmup_steps;
    optim.min_lr = c_.critic.optim.min_lr;
    critic_optim_ = optim;
    TrainEngineOptions options = actor;
    options.value_head = true;
    options.adamw = {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
    options.clip_grad = optim.clip_grad;
    options.offload = {c_.critic.megatron.param_offload, c_.critic.megatron.grad_offload,
                       c_.critic.megatron.optimizer_offload};
    critic_ = std::make_unique<TrainEngine>(job_.context(), source_.config, options);
    critic_->Initialize(static_cast<uint64_t>(c_.trainer.seed));
    const std::string directory = c_.critic.model.path.value_or(source_.directory);
    if (directory.empty()) return;
    critic_->LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      // A language model has no value head: it keeps its random weights.
      ThrowIfError(ImportWeights(directory, source_.config, model::Head::kValue, tables.model));
      return {.weights = true};
    });
  }

  std::vector<Role> SavedRoles() override {
    std::vector<Role> saved = {{"actor", actor_.get()}};
    if (critic_) saved.push_back({"critic", critic_.get()});
    return saved;
  }

  void AddDocuments(checkpoint::SaveRequest* request) override {
    RlState rl;
    rl.version = rollout_->version();
    if (rl.version.digest == 0) rl.version.digest = rollout_->DigestNow();
    rl.critic_optimizer_steps = critic_steps_;
    rl.kl_controller = kl_.State();
    if (rank0()) request->documents.push_back({"rl_state.json", RlStateJson(rl), true});
  }

  void RestoreDocuments(const Documents& documents) override {
    const auto found = documents.find("rl_state.json");
    const RlState rl =
        ValueOrThrow(ParseRlState(found == documents.end() ? std::string() : found->second));
    saved_version_ = rl.version;
    critic_steps_ = rl.critic_optimizer_steps;
    ThrowIfError(kl_.Restore(rl.kl_controller));
  }

  // What is trained is what generates, from the first token on.
  void Restored(bool restored) override {
    job_.Phase("sync");
    if (c_.actor_rollout_ref.rollout.verify_sync != "off") rollout_->Corrupt();
    if (restored && saved_version_.number > 0) {
      rollout_->Restore(saved_version_);
    } else {
      rollout_->Update();
    }
    job_.log().Info("rollout: weights of version {}{}", rollout_->version().number,
                    rollout_->version().digest == 0
                        ? std::string()
                        : fmt::format(", digest {:016x}", rollout_->version().digest));
  }

  void BeforeSteps() override {
    learner_ = std::make_unique<Learner>(
        c_, roles(), job_.context(),
        LearnerOptions{
            batch_options_,
            job_.Schedule(actor_config_.optim, "actor_rollout_ref.actor.optim", total_steps_),
            critic_ ? job_.Schedule(critic_optim_, "critic.optim", total_steps_)
                    : LrScheduleOptions{}});
  }

  StepEnd Step(int64_t step) override {
    // 1. Responses.
    job_.Phase("rollout", step);
    Json m = Json::object();
    int64_t consumed = 0;
    RolloutBatch batch = responses_->Next(step, state_.samples_consumed, &consumed, &m);
    ThrowIfError(FailPoint("rl.rollout"));

    // 2. What they are worth.
    job_.Phase("train", step);
    const Place params_before = actor_->residency().place(StateClass::kParams);
    const Experience experience =
        MakeExperience(c_, roles(), job_.context(), learner_->MiniBatches(batch, step, 0),
                       batch_options_, &kl_, &batch, &m);
    ThrowIfError(FailPoint("rl.experience"));

    // 3. Critic, then actor.
    const UpdateSums sums = learner_->Learn(step, batch, experience, Notices(),
                                            state_.optimizer_steps, &critic_steps_, &m);
    actor_->residency().Restore(StateClass::kParams, params_before);
    ThrowIfError(FailPoint("step.end"));

    // 4. The rollout gets what was learnt; from here on the step has happened.
    job_.Phase("sync", step);
    UpdateRollout(&m);
    Advance(step, consumed, batch.prompt_tokens() + batch.response_tokens());
    CountUpdates(sums.applied, sums.skipped);
    Report(batch, sums, EndTiming(), &m);
    return {sums.stop, sums.busy, m.value("actor/pg_loss", 0.0), sums.grad_norm};
  }

  void UpdateRollout(Json* m) {
    if (c_.actor_rollout_ref.rollout.verify_sync == "every") rollout_->Corrupt();
    const WeightUpdate update = rollout_->Update();
    (*m)["timing_s/param_load"] = update.param_load;
    (*m)["timing_s/param_offload"] = update.param_offload;
    (*m)["timing_s/update_weights"] = update.seconds;
    (*m)["rollout/weight_version"] = rollout_->version().number;
    if (rollout_->version().digest != 0)
      (*m)["rollout/weight_digest"] = fmt::format("{:016x}", rollout_->version().digest);
    (*m)["rollout/sync_bytes"] = update.sync.sent_bytes + update.sync.copied_bytes;
    ThrowIfError(FailPoint("sync.done"));
  }

  void Report(const RolloutBatch& batch, const UpdateSums& sums, double step_s, Json* m) {
    batch.AddMetrics(c_.data.max_prompt_length, c_.data.max_response_length, m);
    const int64_t tokens = batch.prompt_tokens() + batch.response_tokens();
    (*m)["training/global_step"] = state_.step;
    (*m)["training/epoch"] = state_.samples_consumed / prompts_.size();
    (*m)["training/prompts_consumed"] = state_.samples_consumed;
    (*m)["training/skipped_updates"] = state_.skipped_steps;
    (*m)["perf/total_num_tokens"] = tokens;
    (*m)["perf/time_per_step"] = step_s;
    (*m)["perf/throughput"] =
        static_cast<double>(tokens) / step_s / static_cast<double>(job_.context().layout().world());
    (*m)["perf/cpu_memory_used_gb"] = PeakRssGib();
    (*m)["timing_s/step"] = step_s;
    (*m)["timing_s/save_checkpoint"] = job_.TakeBlockedSeconds();
    const double generated = std::max<double>(1, static_cast<double>(batch.response_tokens()));
    (*m)["timing_per_token_ms/gen"] = (*m)["timing_s/gen"].get<double>() * 1000 / generated;
    MetricsWriter* metrics = job_.metrics();
    if (metrics == nullptr) return;
    metrics->Write(state_.step, *m);
    if (!metrics->console() ||
        (state_.step % c_.trainer.log_freq != 0 && state_.step != total_steps_))
      return;
    job_.log().Info(
        "step {:>{}}/{}  reward {:>6.3f}  pg_loss {:>8.4f}  kl {:.1e}  entropy {:>6.3f}  length "
        "{:>6.1f}  gen {:.2f} s  train {:.2f} s  sync {:.3f} s  step {:.2f} s  eta {}{}{}",
        state_.step, std::to_string(total_steps_).size(), total_steps_,
        (*m)["critic/score/mean"].get<double>(), m->value("actor/pg_loss", 0.0),
        m->value("actor/ppo_kl", 0.0), m->value("actor/entropy", 0.0),
        (*m)["response_length/mean"].get<double>(), (*m)["timing_s/gen"].get<double>(),
        (*m)["timing_s/update_actor"].get<double>() + (*m)["timing_s/old_log_prob"].get<double>(),
        (*m)["timing_s/update_weights"].get<double>(), step_s, FormatDuration(RemainingSeconds()),
        ErrorsText((*m)["reward/errors"].get<int64_t>(), (*m)["reward/samples"].get<int64_t>()),
        sums.skipped > 0 ? "  SKIPPED: loss or norm not finite" : "");
  }

  std::optional<double> Validate() override {
    if (val_.size() == 0) return std::nullopt;
    const Stopwatch watch;
    rollout_->Prepare();
    std::vector<RolloutPrompt> prompts;
    for (int64_t i = 0; i < val_.size(); ++i)
      prompts.push_back({kValidationPositions + i, &val_.Get(i)});
    RolloutTimes times;
    const RolloutBatch batch = RolloutBatch::Make(worker_->Run(
        prompts, c_.actor_rollout_ref.rollout.val_kwargs.n, ValSampling(c_), false, &times));
    rollout_->Leave();
    reward_errors_.Judge(batch.responses, fmt::format("the validation after step {}", state_.step));
    const int64_t errors = CountFailed(batch.responses);
    std::vector<Response> counted = batch.responses;
    if (rewards::Excludes(reward_errors_.policy()))
      std::erase_if(counted, [](const Response& r) { return r.failed(); });
    Json m = ValidationMetrics(counted);
    std::optional<double> mean;  // of nothing there is none
    if (!counted.empty()) m["val-core/all/reward/mean"] = *(mean = MeanScore(counted));
    m["val-aux/all/reward/errors"] = errors;
    m["timing_s/testing"] = watch.Elapsed();
    if (rank0() && c_.trainer.validation_data_dir) {
      ThrowIfError(
          WriteDump(fmt::format("{}/{}.jsonl", *c_.trainer.validation_data_dir, state_.step), batch)
              .WithContext("trainer.validation_data_dir"));
    }
    MetricsWriter* metrics = job_.metrics();
    if (metrics == nullptr) return mean;
    metrics->Write(state_.step, m);
    if (metrics->console()) {
      job_.log().Info("validation  reward {} over {} responses{} ({:.1f} s)",
                      mean ? fmt::format("{:.3f}", *mean) : "none", counted.size(),
                      ErrorsText(errors, static_cast<int64_t>(batch.responses.size())),
                      watch.Elapsed());
    }
    return mean;
  }

  const ActorSection& actor_config_;
  KlController kl_;
  RewardErrors reward_errors_;
  PromptSet prompts_, val_;
  RlBatchOptions batch_options_;
  OptimSection critic_optim_;
  int64_t critic_steps_ = 0;
  std::unique_ptr<TrainEngine> actor_, ref_, critic_;
  std::unique_ptr<RolloutModel> rollout_;
  std::unique_ptr<RolloutWorker> worker_;
  std::unique_ptr<ResponseSource> responses_;
  std::unique_ptr<Learner> learner_;
  WeightVersion saved_version_;  // of the checkpoint that was loaded
};

}  // namespace

RunEnd RunRlTask(Job& job) { return RlTask(job).Run(); }

}  // namespace keel::trainer::rl
