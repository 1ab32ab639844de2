#include "trainer/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/fail_point.h"
#include "trainer/weights_digest.h"

namespace keel::trainer {

RunEnd Task::Run() {
  try {
    return Main();
  } catch (const std::exception& error) {
    // What is being saved is of a good step; its memory is gone when this task is.
    const std::string who = job_.WhoHangs(error);
    if (who.empty()) {
      job_.EndSaves(error);
      throw;
    }
    const Error named(
        StatusCode::kDeadlineExceeded,
        fmt::format("{}; {}", dynamic_cast<const Error&>(error).status().message(), who));
    job_.EndSaves(named);
    throw named;
  }
}

RunEnd Task::Main() {
  job_.Phase("data");
  job_.CheckPaths();
  SetUpModel();
  LoadData();
  ThrowIfError(FailPoint("trainer.data"));
  job_.Connect();
  ThrowIfError(FailPoint("trainer.connected"));
  job_.Phase("model");
  BuildModels();
  ThrowIfError(FailPoint("trainer.model"));
  OpenCheckpoints();
  ThrowIfError(FailPoint("trainer.opened"));
  Resume();
  return Loop();
}

// Tokenizer and model shape, and whether they fit each other and the layout.
void Task::SetUpModel() {
  tokenizer_ = ValueOrThrow(model::MakeTokenizer(c_.data.tokenizer));
  const DType stored = job_.dtype() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
  source_ = ValueOrThrow(ResolveModel(c_.actor_rollout_ref.model.path.value_or(""),
                                      c_.actor_rollout_ref.model.config, stored, tokenizer_.get()));
  if (source_.config.vocab_size < tokenizer_->vocab_size()) {
    throw Error(StatusCode::kConfig,
                fmt::format("vocab_size {} is less than the tokenizer's {} ids",
                            source_.config.vocab_size, tokenizer_->vocab_size()));
  }
  const MegatronSection& megatron = job_.actor().megatron;
  model::DecoderOptions fit;
  fit.stages = static_cast<int>(megatron.pipeline_model_parallel_size);
  const auto problems =
      fit.Validate(source_.config, static_cast<int>(megatron.tensor_model_parallel_size));
  if (!problems.empty())
    throw Error(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
}

void Task::RequirePositions(int64_t positions, const std::string& keys) const {
  if (positions <= source_.config.max_position_embeddings) return;
  throw Error(StatusCode::kConfig,
              fmt::format("{}: {} positions, the model's max_position_embeddings is {}", keys,
                          positions, source_.config.max_position_embeddings));
}

void Task::SetData(const Digest128& digest, int64_t samples) {
  const auto seed = static_cast<uint64_t>(c_.trainer.seed);
  order_ = std::make_unique<SampleOrder>(samples, seed, c_.data.shuffle);
  identity_ = {digest.ToHex(), samples, c_.trainer.seed, c_.data.shuffle};
}

void Task::SetSteps() {
  if (c_.trainer.total_training_steps) {
    total_steps_ = *c_.trainer.total_training_steps;
    return;
  }
  const double samples = *c_.trainer.total_epochs * static_cast<double>(identity_.samples);
  total_samples_ = std::max<int64_t>(1, std::llround(samples));
  RecountSteps();
}

void Task::RecountSteps() {
  if (!total_samples_) return;
  const int64_t batch = c_.data.train_batch_size;
  const int64_t left = std::max<int64_t>(0, *total_samples_ - state_.samples_consumed);
  total_steps_ = state_.step + (left + batch - 1) / batch;
}

int64_t Task::BatchCount() const {
  const int64_t batch = c_.data.train_batch_size;
  return total_samples_ ? std::min(batch, *total_samples_ - state_.samples_consumed) : batch;
}

void Task::SetReference(TrainEngine& reference) {
  ref_digest_ = WeightsDigest(reference, job_.context().world());
}

void Task::OpenCheckpoints() {
  job_.OpenCheckpoints();
  job_.set_snapshot([this] { return Snapshot(); });
  for (const Role& role : SavedRoles()) {
    role.engine->set_before_write([this](const void* begin, size_t bytes) {
      (void)job_.checkpointer().WaitFree(begin, bytes);
    });
  }
  if (c_.trainer.save_freq > 0) job_.PrepareSaves(total_steps_);
}

checkpoint::SaveRequest Task::Snapshot() {
  checkpoint::SaveRequest request = job_.NewSaveRequest(source_);
  AddDocuments(&request);  // first: it may move weights, which ends the tables' validity
  for (const Role& role : SavedRoles()) {
    TrainEngine& engine = *role.engine;
    engine.StartCopyToHost();
    checkpoint::RoleState state{role.name,
                                engine.ModelTable(false),
                                engine.OptimizerTable(false),
                                engine.ModelOnHost(),
                                engine.OptimizerOnHost(),
                                nullptr};
    if (!job_.device().is_cpu()) {
      state.arrived = [&engine](const std::byte* begin, int64_t bytes) {
        return engine.WaitArrived(begin, bytes);
      };
    }
    request.roles.push_back(std::move(state));
  }
  // A result of other weights than these would make the wrong checkpoint the best.
  if (validated_ && validated_->first == state_.step) request.metric = validated_->second;
  request.keep_older = state_.consecutive_skips > 0;
  if (job_.rank0()) {
    request.documents.push_back({"trainer_state.json", TrainerStateJson(state_), true});
    request.documents.push_back({"data_state.json", DataStateJson(state_, identity_), true});
  }
  return request;
}

// State of an earlier start, if asked for and there.
void Task::Resume() {
  checkpoint::LoadRequest request;
  for (const Role& role : SavedRoles()) {
    role.engine->CopyToHost();  // parts that are not loaded keep their values
    request.roles.push_back(
        {role.name, role.engine->ModelTable(true), role.engine->OptimizerTable(true)});
  }
  request.contents = ContentsOf(job_.actor().checkpoint.load_contents);
  request.allow_missing = job_.actor().checkpoint.load_allow_missing;
  request.config_digest = source_.config.Digest();
  const auto record = job_.Load(request);
  const bool weights = request.contents.model || request.contents.hf_model;
  if (record && !weights) {
    job_.log().Warning(
        "actor_rollout_ref.actor.checkpoint.load_contents has neither model nor hf_model: the "
        "weights are those that this run began with, not those of {}",
        record->directory);
  }
  if (record) {
    for (const Role& role : SavedRoles()) {
      role.engine->CopyToDevice();
      // Masters that were loaded are of other weights than these, unless those were, too.
      if (!request.contents.optimizer || !weights) role.engine->WeightsChanged();
    }
  }
  // A checkpoint without `extra`, or of another task, has weights alone to give.
  if (record && request.contents.extra) {
    Documents documents = record->documents;
    state_ = ValueOrThrow(ParseRunState(documents["trainer_state.json"],
                                        documents["data_state.json"], identity_, record->step));
    if (ref_digest_ != 0 && state_.ref_digest != 0 && state_.ref_digest != ref_digest_) {
      throw Error(StatusCode::kConfig,
                  fmt::format("the reference's weights have digest {:016x}, those of the "
                              "checkpoint's run {:016x}: actor_rollout_ref.model.path or "
                              "trainer.seed is not what the run started from; give that again, or "
                              "begin a new run",
                              ref_digest_, state_.ref_digest));
    }
    RestoreDocuments(documents);
  }
  state_.ref_digest = ref_digest_;
  if (record) {
    job_.log().Info("resumed from {} at step {} ({} samples consumed) in {:.2f} s",
                    record->directory, state_.step, state_.samples_consumed, record->total_s);
  } else if (job_.resume_mode() != "disable") {
    job_.log().Info("no checkpoint in {}: starting from the beginning",
                    c_.trainer.default_local_dir);
  }
  Restored(record.has_value());
  job_.WarnOfLaterSteps(record);
  job_.OpenMetrics();
  if (record && job_.metrics() != nullptr) job_.metrics()->Load(*record);
}

RunEnd Task::Loop() {
  job_.context().world().Barrier();
  BeforeSteps();
  if (c_.trainer.val_before_train && state_.step == 0) RunValidation();
  while (state_.step < total_steps_) {
    const int64_t step = state_.step + 1;
    job_.log().set_step(step);
    job_.context().set_step(step);
    job_.Phase("train", step);
    step_watch_ = Stopwatch();
    ThrowIfError(FailPoint("step.begin"));
    const StepEnd end = Step(step);
    job_.AfterStep(step_s_);
    CheckSkips(end);

    const bool last = step == total_steps_;
    bool busy = end.busy;
    // Whoever asked the run to stop waits for the save, not for a validation.
    if (c_.trainer.test_freq > 0 && (last || (step % c_.trainer.test_freq == 0 && !end.stop))) {
      RunValidation();
      busy = busy && job_.SavingSomewhere();  // it may have ended since
    }
    if ((last || end.stop) && c_.trainer.save_freq > 0) {
      job_.SaveLast(last);
    } else if (job_.SaveDue(last) || save_owed_) {
      SaveUnlessDiverging(busy);
    }
    if (end.stop && !last) return job_.Preempted();
  }
  if (state_.step >= total_steps_) {
    job_.log().Info("all {} steps are done{}", total_steps_,
                    state_.step > total_steps_ ? ": the checkpoint is of a later one" : "");
  }
  job_.Finish();
  return RunEnd::kFinished;
}

// Where updates are being skipped, what led there may be in the weights already: such a state does
// not take the place of older ones.
void Task::SaveUnlessDiverging(bool busy_somewhere) {
  const bool diverging = state_.consecutive_skips > 0;
  if (diverging && !save_owed_) {
    job_.log().Warning(
        "step {} is not saved: loss or gradient norm is not finite; the next step where both are "
        "is saved",
        state_.step);
  }
  save_owed_ = diverging;
  if (!diverging) job_.Save(busy_somewhere);
}

void Task::RunValidation() {
  job_.Phase("validate");
  validated_.reset();
  const Stopwatch watch;
  const std::optional<double> value = Validate();
  validation_s_ = watch.Elapsed();
  if (value && std::isfinite(*value)) validated_ = {state_.step, *value};
}

void Task::Advance(int64_t step, int64_t samples, int64_t tokens) {
  state_.step = step;
  state_.samples_consumed += samples;
  state_.tokens_consumed += tokens;
}

void Task::CountUpdates(int64_t applied, int64_t skipped) {
  state_.optimizer_steps += applied;
  state_.skipped_steps += skipped;
  state_.consecutive_skips = applied > 0 ? 0 : state_.consecutive_skips + skipped;
}

double Task::EndTiming() {
  step_s_ = step_watch_.Elapsed();
  mean_step_s_ = mean_step_s_ == 0 ? step_s_ : 0.9 * mean_step_s_ + 0.1 * step_s_;
  return step_s_;
}

void Task::CheckSkips(const StepEnd& end) const {
  if (state_.consecutive_skips < c_.trainer.max_consecutive_skips) return;
  throw Error(StatusCode::kInvalidData,
              fmt::format("loss or gradient norm was not finite in {} updates in a row up to step "
                          "{} (loss {}, norm {}); lower actor_rollout_ref.actor.optim.lr or look "
                          "at the data, and resume from an older checkpoint",
                          state_.consecutive_skips, state_.step, end.loss, end.grad_norm));
}

}  // namespace keel::trainer
