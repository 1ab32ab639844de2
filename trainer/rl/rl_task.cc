#include "trainer/rl/rl_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "rewards/reward_functions.h"
#include "rewards/verifier_factory.h"
#include "trainer/data/prompt_data.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/inputs/run_model.h"
#include "trainer/metrics/metrics_sink.h"
#include "trainer/metrics/step_files.h"
#include "trainer/rl/batch_metrics.h"
#include "trainer/rl/console_text.h"
#include "trainer/rl/dump_writer.h"
#include "trainer/rl/generation/colocated_generation.h"
#include "trainer/rl/generation/rollout_options.h"
#include "trainer/rl/generation/sample_changes.h"
#include "trainer/rl/generation/split_generation.h"
#include "trainer/rl/learn/experience.h"
#include "trainer/rl/learn/learner.h"
#include "trainer/rl/response_source.h"
#include "trainer/rl/reward_errors.h"
#include "trainer/rl/rl_state.h"
#include "trainer/rl/role_engines.h"
#include "trainer/rl/validator.h"
#include "trainer/run/shared_facts.h"
#include "trainer/sync/rollout_model.h"
#include "trainer/sync/rollout_settings.h"

namespace keel::trainer::rl {

namespace {

class RlTask : public Task {
 public:
  RlTask(Job& job, RunCourse& course, const TrainerInputs& inputs)
      : job_(job),
        course_(course),
        inputs_(inputs),
        c_(inputs.loaded.config),
        actor_config_(c_.actor_rollout_ref.actor),
        kl_({c_.algorithm.kl_ctrl.type, c_.algorithm.kl_ctrl.kl_coef, c_.algorithm.kl_ctrl.horizon,
             c_.algorithm.kl_ctrl.target_kl}),
        entropy_({actor_config_.loss.entropy_coeff, actor_config_.loss.entropy_coeff_min,
                  actor_config_.loss.entropy_coeff_max, actor_config_.loss.entropy_coeff_delta,
                  actor_config_.loss.entropy_target}),
        reward_errors_(c_.reward.on_error, WarnOnRank0()),
        dumps_("trainer.rollout_data_dir", c_.trainer.rollout_data_dir, job.log()),
        validator_(job, course, c_, val_, reward_errors_) {}

 private:
  RlRun Models();
  bool rank0() const { return job_.rank0(); }
  RewardErrors::Warn WarnOnRank0();
  const ModelDescription& OpenModel() override { return source_ = ValueOrThrow(OpenRunModel(c_)); }
  TaskData LoadData() override;
  // Actor, reference, critic, and the model that generates.
  void BuildModels() override;
  std::unique_ptr<Generation> MakeGeneration();
  void CheckThatTheCacheHolds(int64_t prompt, int64_t response);
  std::vector<Role> SavedRoles() override { return engines_->Saved(); }
  Reference reference() override { return engines_->reference(); }
  void AddDocuments(checkpoint::SaveRequest* request) override;
  void RestoreDocuments(const Documents& documents) override;
  void RestoreMoments(const Documents& documents, int64_t step) override;
  // What is trained is what generates, from the first token on.
  void Restored(bool restored) override;
  void BeforeSteps() override;
  std::optional<StepEnd> Step(int64_t step) override;
  Status WhyLeft() const override { return generation_->gave_up(); }
  // Not of a split run that has not begun: the checkpoint that it came from has its ledger.
  bool SavesAfterLeftStep() const override {
    return c_.async_training.placement == Placement::kColocated || (begun_ && left_whole_);
  }
  void BeforeWrite(const void* begin, size_t bytes) override {
    if (generation_ != nullptr) generation_->BeforeWrite(begin, bytes);
  }
  void UpdateRollout(StepLine* m);
  // On rank 0.
  void Report(const RolloutBatch& batch, const Learner::Learned& learned, double step_s,
              StepLine* m);
  std::optional<double> Validate() override { return validator_.Validate(*generation_); }
  void Finished() override { generation_->Finish(); }

  Job& job_;
  RunCourse& course_;
  const TrainerInputs& inputs_;
  const Config& c_;
  const ActorSection& actor_config_;
  KlController kl_;
  EntropyController entropy_;  // of use_adaptive_entropy
  RewardErrors reward_errors_;
  DumpWriter dumps_;
  ModelSource source_;
  std::unique_ptr<const RunTurns> turns_;  // null: responses have one turn
  PromptSet prompts_, val_;
  Validator validator_;
  ReadContents sample_contents_;  // what responses and their scores depend on, beside prompts
  RlBatchOptions batch_options_;
  int64_t critic_steps_ = 0;
  std::unique_ptr<RoleEngines> engines_;
  std::unique_ptr<Generation> generation_;
  std::unique_ptr<ResponseSource> responses_;
  bool begun_ = true;       // as of Generation::Begin
  bool left_whole_ = true;  // of the step that was left nothing is taken from what is saved
  std::unique_ptr<Learner> learner_;
  WeightVersion saved_version_;  // of the checkpoint that was loaded
};

RlRun RlTask::Models() { return {c_, engines_->roles(), job_.context(), batch_options_}; }

RewardErrors::Warn RlTask::WarnOnRank0() {
  if (!rank0()) return {};
  return [this](const std::string& text) { job_.log().Warning("{}", text); };
}

TaskData RlTask::LoadData() {
  auto data = ValueOrThrow(LoadPromptData(c_, source_));
  turns_ = ValueOrThrow(OpenRunTurns(c_, source_));
  prompts_ = std::move(data.train);
  val_ = std::move(data.val);
  TaskData given;
  given.train = TaskData::Set::Of(prompts_);
  given.val = TaskData::Set::Of(val_);
  given.samples = "prompts";
  given.epochs =
      c_.algorithm.filter_groups.enable ? EpochUnit::kConsumed : EpochUnit::kWholeBatches;
  if (turns_ != nullptr) {
    sample_contents_["the tools of multi_turn.tool_config_path"] = "digest " + ToolsDigest(*turns_);
    sample_contents_["the chat template"] = ChatFingerprint(source_);
  }
  sample_contents_["the tokens that end a response"] =
      fmt::format("[{}]", fmt::join(StopTokens(source_), ", "));
  for (const auto& [what, digest] : ValueOrThrow(rewards::RewardFileDigests(c_.reward)))
    sample_contents_[what] = digest;
  sample_contents_["what verifiers read of data.train_files (text, extra_info)"] =
      "digest " + prompts_.verifiers_digest().ToHex();
  given.facts.insert(sample_contents_.begin(), sample_contents_.end());
  given.facts["what verifiers read of the validation samples (text, extra_info)"] =
      "digest " + val_.verifiers_digest().ToHex();
  return given;
}

void RlTask::BuildModels() {
  TrainEngineOptions actor = job_.EngineOptions(actor_config_.megatron, actor_config_.optim);
  actor.arithmetic = ActorArithmetic(c_, job_.log());
  batch_options_.dp_rank = job_.context().dp_rank();
  batch_options_.dp = job_.context().layout().dp();
  batch_options_.pad_to_multiple =
      actor.sequence_parallel ? actor_config_.megatron.tensor_model_parallel_size : 1;
  batch_options_.micro_batch_size =
      actor_config_.loss.ppo_micro_batch_size_per_gpu.value_or(c_.data.micro_batch_size_per_gpu);
  batch_options_.device = job_.device();
  engines_ = std::make_unique<RoleEngines>(c_, source_, actor, job_);
  generation_ = MakeGeneration();
  CheckThatTheCacheHolds(c_.data.max_prompt_length, c_.data.max_response_length);
  responses_ = std::make_unique<ResponseSource>(c_, prompts_, course_.order(), *generation_, job_,
                                                reward_errors_, rank0() ? &dumps_ : nullptr);
  // A replay scores nothing, but what it validates.
  if (rank0())
    for (const std::string& reward : rewards::DescribeRewards(c_.reward))
      job_.log().Info("{}", reward);
  if (!c_.trainer.rollout_replay_dir || val_.size() > 0) generation_->StartVerifiers();
  job_.log().Info("model: {} parameters, {} layers; {}", source_.config.NumParameters(),
                  source_.config.num_hidden_layers, generation_->Description());
  job_.log().Info("memory: {}", engines_->actor().residency().Report());
  if (!rank0()) return;
  for (const std::string& remark : RolloutRemarks(c_)) job_.log().Warning("{}", remark);
  const model::RopeSpec& rope = source_.config.rope;
  if (rope.type == model::RopeType::kLongrope &&
      c_.data.max_prompt_length + c_.data.max_response_length > rope.original_positions) {
    job_.log().Warning(
        "rope_type longrope: a response with which a text passes the {} tokens of the model's "
        "original context is trained as a long text, and was begun as a short one: the rollout's "
        "log-probabilities of its first tokens are not the trainer's",
        rope.original_positions);
  }
}

std::unique_ptr<Generation> RlTask::MakeGeneration() {
  RolloutModelOptions rollout;
  const RolloutSection& section = c_.actor_rollout_ref.rollout;
  rollout.tp = RolloutTp(c_);
  rollout.engine = EngineOptionsOf(c_, source_);
  rollout.engine.warn = WarnOnRank0();
  rollout.sync.bucket_bytes = section.checkpoint_engine.update_weights_bucket_megabytes << 20;
  rollout.sync.device = job_.device();
  rollout.staged = section.weight_sync == WeightSyncMode::kStaged;
  rollout.releases = section.free_cache_engine;
  if (c_.async_training.placement == Placement::kSplit) {
    return std::make_unique<SplitGeneration>(
        job_, inputs_, engines_->actor(), rollout.sync,
        SplitInputs{RolloutFacts(inputs_.loaded, job_.device(), source_, turns_.get()),
                    // The desk's thread asks, beside this one: each has an order of its own.
                    [this]() -> PromptAt {
                      return [this, order = std::make_shared<SampleOrder>(course_.order())](
                                 int64_t position) { return prompts_.Get(order->At(position)); };
                    },
                    source_.tokenizer.get()});
  }
  return std::make_unique<ColocatedGeneration>(
      std::make_unique<RolloutModel>(job_.context(), source_.config, engines_->actor(), rollout),
      job_.context(),
      SampleRunnerOptions{&c_.reward, source_.tokenizer.get(), turns_.get(), job_.device(),
                          [this](const std::string& text) { job_.log().Warning("{}", text); },
                          inputs_.stop_requested},
      job_.deadline());
}

// A request that does not fit would come back without a response, in some step, or in each.
void RlTask::CheckThatTheCacheHolds(int64_t prompt, int64_t response) {
  const Status fits = generation_->CheckLengths(prompt, response);
  if (fits.ok()) return;
  throw Error(StatusCode::kConfig, KvCacheAdvice(fits, c_));
}

void RlTask::AddDocuments(checkpoint::SaveRequest* request) {
  RlState rl;
  rl.version = generation_->version();
  rl.critic_optimizer_steps = critic_steps_;
  rl.kl_controller = kl_.State();
  if (actor_config_.loss.use_adaptive_entropy) rl.entropy_controller = entropy_.State();
  // Where no sync has computed the digest, the save does, of what it copies.
  const bool by_save = rl.version.digest == 0;
  if (by_save) request->digest_role = "actor";
  if (!rank0()) return;
  generation_->AddDocuments(&request->documents);
  checkpoint::Document document{"rl_state.json", RlStateJson(rl),
                                BelongsToExtra(request->contents)};
  if (by_save) {
    document.of_digest = [rl](uint64_t digest) {
      RlState with_digest = rl;
      with_digest.version.digest = digest;
      return RlStateJson(with_digest);
    };
  }
  request->documents.push_back(std::move(document));
}

void RlTask::RestoreDocuments(const Documents& documents) {
  const auto found = documents.find("rl_state.json");
  const RlState rl =
      ValueOrThrow(ParseRlState(found == documents.end() ? std::string() : found->second));
  saved_version_ = rl.version;
  ThrowIfError(kl_.Restore(rl.kl_controller));
  if (actor_config_.loss.use_adaptive_entropy)
    ThrowIfError(entropy_.Restore(rl.entropy_controller));
  generation_->RestoreDocuments(
      documents, ValueOrThrow(SampleChanges(documents, inputs_.loaded.resolved, sample_contents_)));
}

void RlTask::RestoreMoments(const Documents& documents, int64_t step) {
  if (engines_->critic() == nullptr) return;
  const auto found = documents.find("rl_state.json");
  if (found == documents.end()) {
    critic_steps_ = step;
    return;
  }
  const RlState rl = ValueOrThrow(ParseRlState(found->second));
  critic_steps_ = rl.critic_optimizer_steps;
}

void RlTask::Restored(bool restored) {
  job_.Phase("sync", course_.state().step);
  if (c_.actor_rollout_ref.rollout.verify_sync != VerifySync::kOff) generation_->Corrupt();
  if (restored && saved_version_.number > 0) {
    // Without the weights there is nothing to compare with what was saved.
    using checkpoint::Content;
    const std::vector<Content>& contents = actor_config_.checkpoint.load_contents;
    const bool weights = std::any_of(contents.begin(), contents.end(), [](Content one) {
      return one == Content::kModel || one == Content::kHfModel;
    });
    if (!weights) saved_version_.digest = 0;
    generation_->Restore(saved_version_);
  } else {
    generation_->Update();
  }
  job_.log().Info("rollout: weights of version {}{}", generation_->version().number,
                  generation_->version().digest == 0
                      ? std::string()
                      : fmt::format(", digest {:016x}", generation_->version().digest));
}

void RlTask::BeforeSteps() {
  RunSamples samples;
  samples.first = course_.state().samples_consumed;
  samples.batch = c_.data.train_batch_size;
  // A step that filters takes as many as it needs.
  const int64_t steps = std::max<int64_t>(0, course_.total_steps() - course_.state().step);
  samples.end = steps > 0 && c_.algorithm.filter_groups.enable
                    ? kValidationPositions
                    : samples.first + steps * samples.batch;
  samples.n = c_.actor_rollout_ref.rollout.n;
  samples.greedy_baseline = TraitsOf(c_.algorithm.adv_estimator).greedy_baseline;
  samples.texts = c_.trainer.rollout_data_dir.has_value();
  // A replay may write where it reads.
  if (rank0() && !SameFolder(c_.trainer.rollout_replay_dir, c_.trainer.rollout_data_dir))
    dumps_.Begin(*course_.start(), course_.state().step + 1);
  validator_.Begin();
  const AsyncSection& async = c_.async_training;
  const bool records = rank0() && async.placement == Placement::kSplit && async.schedule_record;
  if (records && !SameFolder(async.schedule_replay, async.schedule_record))
    KeepStepFilesOf("async_training.schedule_record", *async.schedule_record, *course_.start(),
                    course_.state().step + 1, job_.log());
  begun_ = generation_->Begin(samples);
  learner_ = std::make_unique<Learner>(
      Models(),
      LearnerSchedules{
          job_.Schedule(actor_config_.optim, "actor_rollout_ref.actor.optim",
                        course_.schedule_steps()),
          engines_->critic() != nullptr
              ? job_.Schedule(c_.critic.optim, "critic.optim", course_.schedule_steps())
              : LrScheduleOptions{}},
      &entropy_);
}

std::optional<RlTask::StepEnd> RlTask::Step(int64_t step) {
  // 1. Responses.
  job_.Phase("rollout", step);
  SpanRecorder* const spans = job_.context().spans();
  ScopedSpan rollout_span(spans, "rollout");
  StepLine m;
  int64_t consumed = 0;
  std::optional<RolloutBatch> next =
      responses_->Next(step, course_.state().samples_consumed, &consumed, &m);
  if (!next) {
    if (responses_->handed_out()) left_whole_ = generation_->LeaveStep();
    return std::nullopt;
  }
  RolloutBatch& batch = *next;
  BatchShare share = BatchShare::HandOut(
      job_.context(), job_.device(), batch,
      [&](const BatchOutline& outline) { return learner_->Passes(outline, step); });
  rollout_span.End();
  ThrowIfError(FailPoint("rl.rollout"));

  // 2. What they are worth.
  job_.Phase("train", step);
  const Place params_before = engines_->actor().residency().place(StateClass::kParams);
  const Json kl_before = kl_.State();
  ScopedSpan experience_span(spans, "experience");
  const Experience experience = MakeExperience(
      Models(), learner_->MiniBatches(share.outline(), step, 0), &kl_, &batch, &share, &m);
  experience_span.End();
  ThrowIfError(FailPoint("rl.experience"));

  // 3. Critic, then actor.
  if (!generation_->BeforeUpdate()) {
    left_whole_ = generation_->LeaveStep();
    ThrowIfError(kl_.Restore(kl_before));
    engines_->actor().residency().Restore(StateClass::kParams, params_before);
    return std::nullopt;
  }
  ScopedSpan update_span(spans, "update");
  const Learner::Learned learned =
      learner_->Learn(step, share, experience, course_.state().optimizer_steps, critic_steps_, &m);
  const UpdateSums& sums = learned.actor;
  if (rank0() && sums.policy)
    AddUpdateMetrics(c_.algorithm.rollout_correction, batch, *sums.policy, &m);
  critic_steps_ += learned.critic_applied;
  const RefSection& ref = c_.actor_rollout_ref.ref;
  if (ref.SyncsAfter(step))
    engines_->reference().engine->MixIn(engines_->actor(), ref.ref_model_mixup_alpha);
  engines_->actor().residency().Restore(StateClass::kParams, params_before);
  update_span.End();
  ThrowIfError(FailPoint("step.end"));

  // 4. The rollout gets what was learnt; from here on the step has happened.
  job_.Phase("sync", step);
  ScopedSpan sync_span(spans, "sync");
  UpdateRollout(&m);
  sync_span.End();
  course_.Advance(step, consumed, share.outline().prompt_tokens() + share.tokens());
  course_.CountUpdates({sums.applied, sums.skipped},
                       {learned.critic_applied, learned.critic_skipped});
  const double step_s = course_.EndTiming();
  if (rank0()) Report(batch, learned, step_s, &m);
  if (sums.skipped == 0 && learned.critic_skipped > 0)
    return StepEnd{m.Number("critic/vf_loss"), m.Number("critic/grad_norm"), "critic"};
  return StepEnd{m.Number("actor/pg_loss"), sums.grad_norm};
}

void RlTask::UpdateRollout(StepLine* m) {
  if (c_.actor_rollout_ref.rollout.verify_sync == VerifySync::kEvery) generation_->Corrupt();
  ThrowIfError(FailPoint("sync.begin"));
  const Stopwatch watch;
  const WeightUpdate update = generation_->Update();
  m->Set("timing_s/sync", watch.Elapsed());
  m->Set("timing_s/param_load", update.param_load);
  m->Set("timing_s/param_offload", update.param_offload);
  m->Set("timing_s/update_weights", update.seconds);
  m->Set("timing_s/publish_blocked", update.blocked);
  const WeightVersion& proved = generation_->proved();
  m->Set("rollout/weight_version", proved.number);
  if (proved.digest != 0) m->Set("rollout/weight_digest", fmt::format("{:016x}", proved.digest));
  m->Set("rollout/sync_bytes", update.sync.sent_bytes + update.sync.copied_bytes);
  ThrowIfError(FailPoint("sync.done"));
}

void RlTask::Report(const RolloutBatch& batch, const Learner::Learned& learned, double step_s,
                    StepLine* m) {
  AddBatchMetrics(batch, c_.data.max_prompt_length, c_.data.max_response_length, m);
  AddRewardMetrics(batch, m);
  if (turns_ != nullptr) AddTurnMetrics(batch, m);
  const int64_t tokens = batch.prompt_tokens() + batch.response_tokens();
  m->Set("training/global_step", course_.state().step);
  m->Set("training/epoch", course_.state().samples_consumed / prompts_.size());
  m->Set("training/prompts_consumed", course_.state().samples_consumed);
  m->Set("training/skipped_updates", course_.state().skipped_steps);
  m->Set("perf/total_num_tokens", tokens);
  m->Set("perf/time_per_step", step_s);
  m->Set("perf/throughput", static_cast<double>(tokens) / step_s /
                                static_cast<double>(job_.context().layout().world()));
  m->Set("perf/cpu_memory_used_gb", PeakRssGib());
  m->Set("timing_s/step", step_s);
  if (c_.async_training.placement == Placement::kSplit) {
    const double idle =
        m->Number("timing_s/wait_for_samples") + m->Number("timing_s/publish_blocked");
    m->Set("fully_async/trainer/idle_ratio", idle / step_s);
  }
  m->Set("timing_s/save_checkpoint", course_.TakeBlockedSeconds());
  MetricsSink* const writer = course_.metrics();
  if (writer == nullptr) return;
  writer->Step(*m, course_.Progress(learned.actor.skipped + learned.critic_skipped > 0), RlText);
  std::vector<double> lengths;
  for (const Response& r : batch.responses) lengths.push_back(static_cast<double>(r.tokens.size()));
  writer->Histogram(course_.state().step, "response_length", lengths);
  writer->Histogram(course_.state().step, "critic/score", batch.scores_that_count());
}

}  // namespace

std::unique_ptr<Task> MakeRlTask(Job& job, RunCourse& course, const TrainerInputs& inputs) {
  return std::make_unique<RlTask>(job, course, inputs);
}

}  // namespace keel::trainer::rl
