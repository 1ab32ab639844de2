#include "trainer/rl/rl_task.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "trainer/data/sample_order.h"
#include "trainer/lr_schedule.h"
#include "trainer/rl/experience.h"
#include "trainer/rl/prompt_data.h"
#include "trainer/rl/reward_shaping.h"
#include "trainer/rl/rl_state.h"
#include "trainer/rl/rollout_worker.h"
#include "trainer/rl/updates.h"
#include "trainer/rl/validation.h"
#include "trainer/rollout_model.h"
#include "trainer/rollout_settings.h"

namespace keel::trainer::rl {

namespace {

// Validation draws from streams that no training prompt uses.
constexpr int64_t kValidationPositions = int64_t{1} << 62;

double PeakRssGb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

class RlTask {
 public:
  explicit RlTask(Job& job)
      : job_(job),
        c_(job.config()),
        actor_config_(job.actor()),
        kl_({c_.algorithm.kl_ctrl.type == "adaptive", c_.algorithm.kl_ctrl.kl_coef,
             c_.algorithm.kl_ctrl.horizon, c_.algorithm.kl_ctrl.target_kl}),
        state_(job.state) {}

  RunEnd Main() {
    SetUpData();
    ThrowIfError(FailPoint("trainer.data"));
    job_.Connect();
    ThrowIfError(FailPoint("trainer.connected"));
    BuildModels();
    ThrowIfError(FailPoint("trainer.model"));
    OpenCheckpoints();
    ThrowIfError(FailPoint("trainer.opened"));
    Resume();
    return Loop();
  }

 private:
  Roles roles() { return {actor_.get(), ref_.get(), critic_.get()}; }
  bool rank0() const { return job_.rank0(); }

  // 1. Model shape, tokenizer, prompts. Bad input ends the run here, before any connection.
  void SetUpData() {
    job_.Phase("data");
    job_.CheckResumePath();
    tokenizer_ = ValueOrThrow(model::MakeTokenizer(c_.data.tokenizer));
    const DType stored = job_.dtype() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
    source_ =
        ValueOrThrow(ResolveModel(c_.actor_rollout_ref.model.path.value_or(""),
                                  c_.actor_rollout_ref.model.config, stored, tokenizer_.get()));
    if (source_.config.vocab_size < tokenizer_->vocab_size()) {
      throw Error(StatusCode::kConfig,
                  fmt::format("vocab_size {} is less than the tokenizer's {} ids",
                              source_.config.vocab_size, tokenizer_->vocab_size()));
    }
    model::DecoderOptions fit;
    fit.stages = static_cast<int>(actor_config_.megatron.pipeline_model_parallel_size);
    auto problems = fit.Validate(
        source_.config, static_cast<int>(actor_config_.megatron.tensor_model_parallel_size));
    model::DecoderOptions whole;
    for (const std::string& problem : whole.Validate(source_.config, RolloutTp()))
      problems.push_back("actor_rollout_ref.rollout: " + problem);
    const int64_t longest = c_.data.max_prompt_length + c_.data.max_response_length;
    if (longest > source_.config.max_position_embeddings) {
      problems.push_back(fmt::format(
          "data.max_prompt_length {} and data.max_response_length {} together are above the "
          "model's max_position_embeddings {}",
          c_.data.max_prompt_length, c_.data.max_response_length,
          source_.config.max_position_embeddings));
    }
    if (!problems.empty())
      throw Error(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));

    PromptOptions options;
    options.max_prompt_length = c_.data.max_prompt_length;
    options.truncation = c_.data.truncation == "right"  ? Truncation::kRight
                         : c_.data.truncation == "left" ? Truncation::kLeft
                         : c_.data.truncation == "skip" ? Truncation::kSkip
                                                        : Truncation::kError;
    options.filter_overlong_prompts = c_.data.filter_overlong_prompts;
    options.vocab_size = source_.config.vocab_size;
    options.need_known_source = c_.reward.type == "auto";
    options.prompt_key = c_.data.prompt_key;
    options.answer_key = c_.data.answer_key;
    options.source_key = c_.data.reward_fn_key;
    prompts_ = ValueOrThrow(PromptSet::Load(c_.data.train_files, options, *tokenizer_));
    if (!c_.data.val_files.empty())
      val_ = ValueOrThrow(PromptSet::Load(c_.data.val_files, options, *tokenizer_));
    const auto seed = static_cast<uint64_t>(c_.trainer.seed);
    if (c_.data.val_split > 0) val_ = prompts_.SplitOff(c_.data.val_split, seed);
    if (prompts_.size() == 0)
      throw Error(StatusCode::kInvalidData, "data.train_files: no prompt to train on");
    order_ = std::make_unique<SampleOrder>(prompts_.size(), seed, c_.data.shuffle);
    identity_ = {prompts_.digest().ToHex(), prompts_.size(), c_.trainer.seed, c_.data.shuffle};
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

  // 2. Actor, reference, critic, and the model that generates.
  void BuildModels() {
    job_.Phase("model");
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
    }
    if (c_.critic.enable.value_or(c_.algorithm.adv_estimator == "gae")) BuildCritic(actor);
    actor_->OffloadIdle();
    if (ref_) ref_->OffloadIdle();
    if (critic_) critic_->OffloadIdle();

    RolloutModelOptions rollout;
    const RolloutSection& section = c_.actor_rollout_ref.rollout;
    rollout.tp = RolloutTp();
    rollout.engine = RolloutEngineOptions(c_, source_.config.max_position_embeddings);
    for (const int64_t id : source_.config.eos_token_ids)
      rollout.engine.eos_token_ids.push_back(static_cast<int32_t>(id));
    if (rollout.engine.eos_token_ids.empty() && tokenizer_->eos())
      rollout.engine.eos_token_ids.push_back(*tokenizer_->eos());
    rollout.engine.tokenizer = tokenizer_.get();
    rollout.sync.bucket_bytes = section.checkpoint_engine.update_weights_bucket_megabytes << 20;
    rollout.sync.device = job_.device();
    rollout.staged = section.weight_sync == "staged";
    rollout.releases = section.free_cache_engine;
    rollout_ = std::make_unique<RolloutModel>(job_.context(), source_.config, *actor_, rollout);
    if (ref_) ref_digest_ = rollout_->DigestOf(*ref_);
    worker_ = std::make_unique<RolloutWorker>(*rollout_, job_.context(), c_.reward,
                                              tokenizer_.get(), job_.device());
    job_.log().Info(
        "model: {} parameters, {} on this rank's stage; {} rollout replicas of {} ranks{}",
        source_.config.NumParameters(), actor_->decoder().parameters().size(), rollout_->replicas(),
        rollout.tp, rollout_->aliased() ? ", which use the trainer's own memory" : "");
    job_.log().Info("memory: {}", actor_->residency().Report());
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
    critic_->CopyToHost();
    // A language model has no value head: it keeps its random weights.
    ThrowIfError(ImportWeights(directory, critic_->ModelTable(true), {"score.weight"}));
    critic_->CopyToDevice();
    critic_->WeightsChanged();
  }

  // 3. The run's folder.
  void OpenCheckpoints() {
    job_.OpenCheckpoints();
    job_.set_snapshot([this] { return Snapshot(); });
    const auto wait = [this](const void* begin, size_t bytes) {
      (void)job_.checkpointer().WaitFree(begin, bytes);
    };
    actor_->set_before_write(wait);
    if (critic_) critic_->set_before_write(wait);
    if (c_.trainer.save_freq > 0) job_.PrepareSaves();
  }

  checkpoint::SaveRequest Snapshot() {
    WeightVersion version = rollout_->version();
    if (version.digest == 0) version.digest = rollout_->DigestNow();
    actor_->CopyToHost();
    if (critic_) critic_->CopyToHost();
    checkpoint::SaveRequest request = job_.NewSaveRequest(source_);
    request.roles = {{"actor", actor_->ModelTable(false), actor_->OptimizerTable(false),
                      actor_->ModelOnHost(), actor_->OptimizerOnHost()}};
    if (critic_) {
      request.roles.push_back({"critic", critic_->ModelTable(false), critic_->OptimizerTable(false),
                               critic_->ModelOnHost(), critic_->OptimizerOnHost()});
    }
    if (validated_ && validated_->first == state_.step) request.metric = validated_->second;
    if (rank0()) {
      RlState rl;
      rl.version = version;
      rl.critic_optimizer_steps = critic_steps_;
      rl.kl_controller = kl_.State();
      rl.ref_digest = ref_digest_;
      request.documents.push_back({"trainer_state.json", TrainerStateJson(state_), true});
      request.documents.push_back({"data_state.json", DataStateJson(state_, identity_), true});
      request.documents.push_back({"rl_state.json", RlStateJson(rl), true});
    }
    return request;
  }

  // 4. State of an earlier start, and the first weights for the rollout.
  void Resume() {
    checkpoint::LoadRequest request;
    actor_->CopyToHost();
    request.roles = {{"actor", actor_->ModelTable(true), actor_->OptimizerTable(true)}};
    if (critic_) {
      critic_->CopyToHost();
      request.roles.push_back({"critic", critic_->ModelTable(true), critic_->OptimizerTable(true)});
    }
    request.contents = ContentsOf(actor_config_.checkpoint.load_contents);
    request.config_digest = source_.config.Digest();
    WeightVersion expected;
    auto record = job_.Load(request);
    if (record) {
      actor_->CopyToDevice();
      if (critic_) critic_->CopyToDevice();
      if (!request.contents.optimizer) {
        actor_->WeightsChanged();
        if (critic_) critic_->WeightsChanged();
      }
      // A checkpoint of another task has weights alone to give, and says so by what it lacks.
      if (request.contents.extra) {
        state_ = ValueOrThrow(ParseRunState(record->documents["trainer_state.json"],
                                            record->documents["data_state.json"], identity_));
        const RlState rl = ValueOrThrow(ParseRlState(record->documents["rl_state.json"]));
        if (ref_ && rl.ref_digest != 0 && rl.ref_digest != ref_digest_) {
          throw Error(
              StatusCode::kConfig,
              fmt::format("the reference's weights have digest {:016x}, those of the checkpoint's "
                          "run {:016x}: actor_rollout_ref.model.path or trainer.seed is not what "
                          "the run started from; give that again, or begin a new run",
                          ref_digest_, rl.ref_digest));
        }
        expected = rl.version;
        critic_steps_ = rl.critic_optimizer_steps;
        ThrowIfError(kl_.Restore(rl.kl_controller));
      }
      job_.log().Info("resumed from {} at step {} ({} prompts consumed) in {:.2f} s",
                      record->directory, state_.step, state_.samples_consumed, record->total_s);
    } else if (c_.trainer.resume_mode != "disable") {
      job_.log().Info("no checkpoint in {}: starting from the beginning",
                      c_.trainer.default_local_dir);
    }
    // What is trained is what generates, from the first token on.
    job_.Phase("sync");
    if (c_.actor_rollout_ref.rollout.verify_sync != "off") rollout_->Corrupt();
    if (record && expected.number > 0) {
      rollout_->Restore(expected);
    } else {
      rollout_->Update();
    }
    job_.log().Info("rollout: weights of version {}{}", rollout_->version().number,
                    rollout_->version().digest == 0
                        ? std::string()
                        : fmt::format(", digest {:016x}", rollout_->version().digest));
    job_.OpenMetrics();
  }

  // 5. The steps.
  RunEnd Loop() {
    const LrScheduleOptions schedule = job_.Schedule(actor_config_.optim, total_steps_);
    const LrScheduleOptions critic_schedule = job_.Schedule(critic_optim_, total_steps_);
    job_.context().world().Barrier();
    if (c_.trainer.val_before_train && state_.step == 0) Validate();
    double mean_step_s = 0;
    while (state_.step < total_steps_) {
      const int64_t step = state_.step + 1;
      job_.log().set_step(step);
      job_.context().set_step(step);
      job_.Phase("rollout", step);
      const Stopwatch step_watch;
      Json m = Json::object();
      ThrowIfError(FailPoint("step.begin"));

      // 5.1 Responses.
      int64_t consumed = 0;
      RolloutBatch batch = Responses(step, &consumed, &m);
      ThrowIfError(FailPoint("rl.rollout"));

      // 5.2 What they are worth.
      job_.Phase("train", step);
      const Place params_before = actor_->residency().place(StateClass::kParams);
      const int64_t prompts_each =
          actor_config_.loss.ppo_mini_batch_size.value_or(c_.data.train_batch_size);
      const auto updates_of = [&](int64_t epoch) {
        return CutIntoMiniBatches(batch, prompts_each, actor_config_.loss.shuffle,
                                  static_cast<uint64_t>(c_.trainer.seed), step, epoch);
      };
      const Experience experience = MakeExperience(c_, roles(), job_.context(), updates_of(0),
                                                   batch_options_, &kl_, &batch, &m);
      ThrowIfError(FailPoint("rl.experience"));

      // 5.3 Critic, then actor.
      const StepNotices notices{job_.WantsToStop(mean_step_s), job_.saving()};
      UpdateSums sums =
          Learn(batch, experience, updates_of, notices, schedule, critic_schedule, step, &m);
      actor_->residency().Restore(StateClass::kParams, params_before);
      ThrowIfError(FailPoint("step.end"));

      // 5.4 The rollout gets what was learnt; from here on the step has happened.
      job_.Phase("sync", step);
      UpdateRollout(&m);
      state_.step = step;
      state_.samples_consumed += consumed;
      state_.tokens_consumed += batch.prompt_tokens() + batch.response_tokens();

      // 5.5 Metrics.
      const double step_s = step_watch.Elapsed();
      mean_step_s = mean_step_s == 0 ? step_s : 0.9 * mean_step_s + 0.1 * step_s;
      Report(batch, sums, step_s, mean_step_s, &m);
      job_.AfterStep(step_s);
      if (state_.consecutive_skips >= c_.trainer.max_consecutive_skips) {
        throw Error(StatusCode::kInvalidData,
                    fmt::format("loss or gradient norm was not finite in {} updates in a row up to "
                                "step {}; lower actor_rollout_ref.actor.optim.lr, and resume from "
                                "an older checkpoint",
                                state_.consecutive_skips, step));
      }

      // 5.6 Validate and save when due.
      const bool last = step == total_steps_;
      if (c_.trainer.test_freq > 0 && (step % c_.trainer.test_freq == 0 || last)) Validate();
      if ((last || sums.stop) && c_.trainer.save_freq > 0) {
        job_.SaveLast(last);
      } else if (job_.SaveDue(last)) {
        job_.Save(sums.busy);
      }
      if (sums.stop && !last) return job_.Preempted();
    }
    job_.log().Info("all {} steps are done", total_steps_);
    job_.Finish();
    return RunEnd::kFinished;
  }

  // The step's responses: generated, or read back from an earlier run's dump.
  RolloutBatch Responses(int64_t step, int64_t* consumed, Json* m) {
    const int64_t wanted = c_.data.train_batch_size;
    const std::string name = fmt::format("{}.jsonl", step);
    if (c_.trainer.rollout_replay_dir) {
      *consumed = wanted;
      RolloutBatch batch = ValueOrThrow(ReadDump(*c_.trainer.rollout_replay_dir + "/" + name));
      (*m)["timing_s/gen"] = 0.0;
      (*m)["timing_s/reward"] = 0.0;
      MaskOut(&batch);
      return batch;
    }
    const double param_load = rollout_->Prepare();
    RolloutTimes times;
    std::vector<Response> kept;
    int64_t batches = 0;
    while (true) {
      std::vector<RolloutPrompt> prompts;
      for (int64_t i = 0; i < wanted; ++i) {
        const int64_t position = state_.samples_consumed + *consumed + i;
        prompts.push_back({position, &prompts_.Get(order_->At(position))});
      }
      *consumed += wanted;
      ++batches;
      std::vector<Response> fresh =
          worker_->Run(prompts, c_.actor_rollout_ref.rollout.n, TrainSampling(c_),
                       c_.algorithm.adv_estimator == "remax", &times);
      Shape(&fresh);
      if (!c_.algorithm.filter_groups.enable) {
        kept = std::move(fresh);
        break;
      }
      if (Filter(std::move(fresh), batches, wanted, &kept)) break;
    }
    const double param_offload = rollout_->Leave();
    rollout_->ReleaseWeights();
    RolloutBatch batch = RolloutBatch::Make(std::move(kept));
    if (rank0() && c_.trainer.rollout_data_dir) {
      std::filesystem::create_directories(*c_.trainer.rollout_data_dir);
      ThrowIfError(WriteDump(*c_.trainer.rollout_data_dir + "/" + name, batch));
    }
    (*m)["timing_s/gen"] = times.generate_s;
    (*m)["timing_s/reward"] = times.reward_s;
    (*m)["timing_s/rollout_param_load"] = param_load;
    (*m)["timing_s/rollout_param_offload"] = param_offload;
    (*m)["rollout/gen_batches"] = batches;
    (*m)["perf/rollout_preemptions"] = times.engine.preemptions;
    MaskOut(&batch);
    return batch;
  }

  // DAPO's soft punishment of long responses, and what is to become of failed verifiers.
  void Shape(std::vector<Response>* responses) const {
    for (Response& r : *responses) {
      if (!r.error.empty() && c_.reward.on_error == "stop") {
        throw Error(StatusCode::kUnavailable,
                    fmt::format("reward.on_error: stop: the response to row {} has no score: {}",
                                r.row, r.error));
      }
      const OverlongBufferSection& overlong = c_.reward.overlong_buffer;
      if (overlong.enable) {
        r.score +=
            OverlongPenalty(static_cast<int64_t>(r.tokens.size()), c_.data.max_response_length,
                            overlong.len, overlong.penalty_factor);
      }
    }
  }

  // Takes the informative groups of `fresh` into `kept`; true when they are enough.
  bool Filter(std::vector<Response> fresh, int64_t batches, int64_t wanted,
              std::vector<Response>* kept) const {
    const RolloutBatch batch = RolloutBatch::Make(std::move(fresh));
    std::vector<double> metric;
    std::vector<uint8_t> counted;
    const std::string& name = c_.algorithm.filter_groups.metric;
    for (const Response& r : batch.responses) {
      const auto found = r.extra.find(name);
      metric.push_back(found == r.extra.end() ? r.score : found->second);
      counted.push_back(r.error.empty());
    }
    const std::vector<uint8_t> keep = KeepInformativeGroups(batch.groups(), metric, counted);
    std::set<int64_t> positions;
    for (const Response& r : *kept) positions.insert(r.position);
    for (size_t i = 0; i < keep.size(); ++i) {
      const Response& r = batch.responses[i];
      if (keep[i] == 0) continue;
      if (!positions.contains(r.position) && static_cast<int64_t>(positions.size()) == wanted)
        continue;
      positions.insert(r.position);
      kept->push_back(r);
    }
    switch (DecideSampling(static_cast<int64_t>(positions.size()), wanted, batches,
                           c_.algorithm.filter_groups.max_num_gen_batches)) {
      case SamplingDecision::kEnough:
        return true;
      case SamplingDecision::kGenerate:
        return false;
      case SamplingDecision::kGiveUp:
        break;
    }
    throw Error(
        StatusCode::kInvalidData,
        fmt::format("algorithm.filter_groups: {} of {} groups have rewards that differ after {} "
                    "batches of prompts: the task is too easy or too hard; raise "
                    "max_num_gen_batches, or switch the filter off",
                    positions.size(), wanted, batches));
  }

  // Tokens that are not to be learnt from.
  void MaskOut(RolloutBatch* batch) const {
    for (size_t s = 0; s < batch->responses.size(); ++s) {
      const Response& r = batch->responses[s];
      const bool excluded = (!r.error.empty() && c_.reward.on_error == "exclude") ||
                            (c_.algorithm.overlong_filtering && r.finish == "length");
      if (!excluded) continue;
      std::fill(batch->mask.begin() + batch->boundaries[s],
                batch->mask.begin() + batch->boundaries[s + 1], uint8_t{0});
    }
  }

  template <typename UpdatesOf>
  UpdateSums Learn(const RolloutBatch& batch, const Experience& e, const UpdatesOf& updates_of,
                   StepNotices notices, const LrScheduleOptions& schedule,
                   const LrScheduleOptions& critic_schedule, int64_t step, Json* m) {
    Stopwatch watch;
    UpdateSums all;
    const auto take = [&](UpdateSums one, int64_t epoch) {
      all.stop = all.stop || one.stop;
      all.busy = all.busy || one.busy;
      notices = {};
      for (const auto& [name, value] : one.metrics) {
        // The mean over epochs; what happened before anything was learnt stands by itself.
        Json& slot = (*m)[name];
        slot = epoch == 0 ? value
                          : (slot.get<double>() * static_cast<double>(epoch) + value) /
                                static_cast<double>(epoch + 1);
      }
      return one;
    };
    if (critic_) {
      ValueLossOptions loss;
      loss.cliprange_value = c_.critic.cliprange_value;
      loss.aggregation = ValueOrThrow(
          ParseLossAggregation(c_.critic.loss_agg_mode.value_or(actor_config_.loss.loss_agg_mode)));
      const double lr = LearningRate(critic_schedule, step);
      const int64_t epochs = c_.critic.ppo_epochs.value_or(actor_config_.loss.ppo_epochs);
      RlBatchOptions options = batch_options_;
      options.micro_batch_size =
          c_.critic.ppo_micro_batch_size_per_gpu.value_or(options.micro_batch_size);
      for (int64_t epoch = 0; epoch < epochs; ++epoch) {
        const UpdateSums one =
            take(UpdateCritic(*critic_, job_.context(), batch, updates_of(epoch),
                              {e.values, e.returns}, loss, options, lr, critic_steps_, notices),
                 epoch);
        critic_steps_ += one.applied;
      }
      (*m)["critic/lr"] = lr;
    }
    (*m)["timing_s/update_critic"] = watch.Lap();
    if (step > c_.trainer.critic_warmup) {
      const ActorLossSection& section = actor_config_.loss;
      PolicyLossOptions loss;
      loss.mode = ValueOrThrow(ParsePolicyLossMode(section.policy_loss.loss_mode));
      loss.clip_ratio_low = section.clip_ratio_low.value_or(section.clip_ratio);
      loss.clip_ratio_high = section.clip_ratio_high.value_or(section.clip_ratio);
      loss.clip_ratio_c = section.clip_ratio_c;
      loss.aggregation = ValueOrThrow(ParseLossAggregation(section.loss_agg_mode));
      loss.entropy_coeff = section.entropy_coeff;
      loss.use_kl_loss = section.use_kl_loss;
      loss.kl_loss_coef = section.kl_loss_coef;
      loss.kl_loss_type = ValueOrThrow(ParseKlKind(section.kl_loss_type));
      // A length that does not depend on the batch.
      const auto scale_factor =
          static_cast<double>(section.loss_scale_factor.value_or(c_.data.max_response_length));
      const double lr = LearningRate(schedule, step);
      const PolicyTargets targets{e.old_log_probs, e.advantages, e.ref_log_probs, e.weights};
      for (int64_t epoch = 0; epoch < section.ppo_epochs; ++epoch) {
        const UpdateSums one =
            take(UpdateActor(*actor_, job_.context(), batch, updates_of(epoch), targets, loss,
                             scale_factor, c_.actor_rollout_ref.rollout.temperature, batch_options_,
                             lr, state_.optimizer_steps, notices),
                 epoch);
        state_.optimizer_steps += one.applied;
        state_.skipped_steps += one.skipped;
        state_.consecutive_skips = one.applied > 0 ? 0 : state_.consecutive_skips + one.skipped;
        (*m)["timing_s/optimizer_load"] = one.moves.optimizer_load;
        (*m)["timing_s/optimizer_offload"] = one.moves.optimizer_offload;
      }
      (*m)["actor/lr"] = lr;
    }
    (*m)["timing_s/update_actor"] = watch.Lap();
    return all;
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

  void Report(const RolloutBatch& batch, const UpdateSums& sums, double step_s, double mean_step_s,
              Json* m) {
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
    (*m)["perf/cpu_memory_used_gb"] = PeakRssGb();
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
        "{:>6.1f}  gen {:.2f} s  train {:.2f} s  sync {:.3f} s  step {:.2f} s  eta {}{}",
        state_.step, std::to_string(total_steps_).size(), total_steps_,
        (*m)["critic/score/mean"].get<double>(), m->value("actor/pg_loss", 0.0),
        m->value("actor/ppo_kl", 0.0), m->value("actor/entropy", 0.0),
        (*m)["response_length/mean"].get<double>(), (*m)["timing_s/gen"].get<double>(),
        (*m)["timing_s/update_actor"].get<double>() + (*m)["timing_s/old_log_prob"].get<double>(),
        (*m)["timing_s/update_weights"].get<double>(), step_s,
        FormatDuration(mean_step_s * static_cast<double>(total_steps_ - state_.step)),
        sums.skipped > 0 ? "  SKIPPED: loss or norm not finite" : "");
  }

  void Validate() {
    if (val_.size() == 0) return;
    job_.Phase("validate");
    const Stopwatch watch;
    rollout_->Prepare();
    std::vector<RolloutPrompt> prompts;
    for (int64_t i = 0; i < val_.size(); ++i)
      prompts.push_back({kValidationPositions + i, &val_.Get(i)});
    RolloutTimes times;
    const RolloutBatch batch = RolloutBatch::Make(worker_->Run(
        prompts, c_.actor_rollout_ref.rollout.val_kwargs.n, ValSampling(c_), false, &times));
    rollout_->Leave();
    std::vector<std::string> answers;
    for (const Response& r : batch.responses) answers.push_back(r.text);
    Json m = ValidationMetrics(batch.responses, answers);
    const double mean = MeanScore(batch.responses);
    m["val-core/all/reward/mean"] = mean;
    m["timing_s/testing"] = watch.Elapsed();
    validated_ = {state_.step, mean};
    if (rank0() && c_.trainer.validation_data_dir) {
      std::filesystem::create_directories(*c_.trainer.validation_data_dir);
      ThrowIfError(WriteDump(
          fmt::format("{}/{}.jsonl", *c_.trainer.validation_data_dir, state_.step), batch));
    }
    MetricsWriter* metrics = job_.metrics();
    if (metrics == nullptr) return;
    metrics->Write(state_.step, m);
    if (metrics->console()) {
      job_.log().Info("validation  reward {:.3f} over {} responses ({:.1f} s)", mean,
                      batch.responses.size(), watch.Elapsed());
    }
  }

  Job& job_;
  const Config& c_;
  const ActorSection& actor_config_;
  KlController kl_;
  RunState& state_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  ModelSource source_;
  PromptSet prompts_, val_;
  std::unique_ptr<SampleOrder> order_;
  DataIdentity identity_;
  int64_t total_steps_ = 0;
  RlBatchOptions batch_options_;
  OptimSection critic_optim_;
  int64_t critic_steps_ = 0;
  uint64_t ref_digest_ = 0;
  std::unique_ptr<TrainEngine> actor_, ref_, critic_;
  std::unique_ptr<RolloutModel> rollout_;
  std::unique_ptr<RolloutWorker> worker_;
  std::optional<std::pair<int64_t, double>> validated_;  // step and mean score
};

}  // namespace

RunEnd RunRlTask(Job& job) { return RlTask(job).Main(); }

}  // namespace keel::trainer::rl
