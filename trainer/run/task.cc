#include "trainer/run/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "common/fail_point.h"
#include "common/host_memory.h"
#include "common/options/flat_values.h"
#include "trainer/engine/memory_forecast.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/inputs/run_model.h"
#include "trainer/run/replica_check.h"

namespace keel::trainer {

RunEnd Task::Run() {
  try {
    return Main();
  } catch (const std::exception& error) {
    // What is being saved is of a good step; its memory is gone when this task is.
    Status status = StatusOf(error);
    if (const std::string who = job_.WhoHangs(error); !who.empty()) {
      status = Status(StatusCode::kDeadlineExceeded, fmt::format("{}; {}", status.message(), who));
    } else if (status.code() == StatusCode::kExhausted) {
      status = Status(StatusCode::kExhausted,
                      fmt::format("{}, on rank {} at step {} ({}). {}", status.message(),
                                  job_.inputs().env.rank, job_.log().step(), job_.phase(), room_));
    }
    const Error named(status);
    job_.EndSaves(named);
    throw named;
  }
}

RunEnd Task::Main() {
  job_.Phase("data");
  job_.CheckPaths();
  source_ = ValueOrThrow(OpenRunModel(c_));
  CheckRoom();
  LoadData();
  ThrowIfError(FailPoint("trainer.data"));
  job_.Connect(Facts());
  ThrowIfError(FailPoint("trainer.connected"));
  job_.Phase("model");
  BuildModels();
  ThrowIfError(FailPoint("trainer.model"));
  OpenCheckpoints();
  ThrowIfError(FailPoint("trainer.opened"));
  Resume();
  return Loop();
}

// Whether the state of this node's ranks fits into its memory at all.
void Task::CheckRoom() {
  const parallel::LaunchEnv& env = job_.inputs().env;
  const MemoryForecast forecast = ForecastTraining(c_, source_.config, env.world_size);
  room_ = fmt::format(
      "The run's state takes {} a rank ({}); the rest is data and activations, which grow with "
      "data.max_length and data.micro_batch_size_per_gpu: lower these, set "
      "actor_rollout_ref.model.enable_gradient_checkpointing, or use more ranks",
      FormatBytes(forecast.HostBytes(false)), forecast.ToString());
  const std::string warning = ValueOrThrow(CheckMemory(
      forecast, ReadHostMemory(), std::max(1, env.local_world_size), !job_.device().is_cpu()));
  if (!warning.empty() && env.local_rank == 0) job_.log().Warning("memory: {}", warning);
}

void Task::WarnOfData(const std::vector<std::string>& warnings) const {
  // The same on every rank.
  if (!job_.rank0()) return;
  for (const std::string& warning : warnings) job_.log().Warning("{}", warning);
}

void Task::SetData(const Digest128& digest, int64_t samples) {
  const auto seed = static_cast<uint64_t>(c_.trainer.seed);
  order_ = std::make_unique<SampleOrder>(samples, seed, c_.data.shuffle);
  identity_ = {digest.ToHex(), samples, c_.trainer.seed, c_.data.shuffle};
}

void Task::SetValidation(const Digest128& digest, int64_t samples) {
  const bool wanted = c_.trainer.test_freq > 0 || c_.trainer.val_before_train;
  if (samples == 0 && wanted && job_.rank0()) {
    job_.log().Warning(
        "nothing is validated, as trainer.test_freq or trainer.val_before_train asks for: there "
        "are no data.val_files, and data.val_split is 0");
  }
  if (samples == 0) return;
  // The samples that data.val_split sets apart are in no other digest.
  AddFact(c_.data.val_files.empty() ? "the samples that data.val_split sets apart"
                                    : "content of data.val_files",
          fmt::format("{} samples with digest {}", samples, digest.ToHex()));
}

// Data, model and tokenizer as this rank has read them: what its paths lead to.
SharedFacts Task::Facts() const {
  SharedFacts facts = facts_;
  facts["content of data.train_files"] =
      fmt::format("{} samples with digest {}", identity_.samples, identity_.digest);
  facts["model"] = fmt::format("config digest {}", source_.config.Digest());
  for (const checkpoint::Document& document : source_.documents) {
    facts["content of " + std::filesystem::path(document.path).filename().string()] =
        "digest " + Hash128(std::as_bytes(std::span(document.content))).ToHex();
  }
  if (job_.inputs().env.world_size == 1) return facts;  // nobody to compare weights with
  const auto weights = [&](const char* key, const std::string& directory) {
    if (!directory.empty())
      facts[fmt::format("weights of {}", key)] = ValueOrThrow(WeightsFingerprint(directory));
  };
  weights("actor_rollout_ref.model.path", source_.directory);
  if (c_.trainer.task == "rl") weights("critic.model.path", c_.critic.model.path.value_or(""));
  return facts;
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
  reference_ = &reference;
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
    TrainEngine::StateTables tables = engine.SaveTables();
    checkpoint::RoleState state{role.name,
                                std::move(tables.model),
                                std::move(tables.optimizer),
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
  request.contents = ContentsOf(job_.actor().checkpoint.load_contents);
  request.allow_missing = job_.actor().checkpoint.load_allow_missing;
  request.config_digest = source_.config.Digest();
  const bool weights = request.contents.model || request.contents.hf_model;
  const std::vector<Role> roles = SavedRoles();
  std::vector<TrainEngine*> engines;
  for (const Role& role : roles) engines.push_back(role.engine);
  std::optional<checkpoint::LoadRecord> record;
  TrainEngine::LoadInto(engines, [&](std::vector<TrainEngine::StateTables> tables) {
    for (size_t i = 0; i < roles.size(); ++i)
      request.roles.push_back({roles[i].name, tables[i].model, tables[i].optimizer});
    record = job_.Load(request);
    return record ? TrainEngine::Written{weights, request.contents.optimizer}
                  : TrainEngine::Written{};
  });
  if (record && !weights) {
    job_.log().Warning(
        "actor_rollout_ref.actor.checkpoint.load_contents has neither model nor hf_model: the "
        "weights are those that this run began with, not those of {}",
        record->directory);
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
    SayWhatChanged(record->documents);
  } else if (job_.resume_mode() != "disable") {
    job_.log().Info("no checkpoint in {}: starting from the beginning",
                    c_.trainer.default_local_dir);
  }
  Restored(record.has_value());
  job_.WarnOfLaterSteps(record);
  job_.OpenMetrics();
  if (record && job_.metrics() != nullptr) job_.metrics()->Load(*record);
}

// To go on with other settings is a user's right, and a stale file's accident: each is said.
void Task::SayWhatChanged(const Documents& documents) const {
  const auto saved = documents.find("config.yaml");
  if (saved == documents.end()) return;  // an import: it was not trained by a configuration
  const auto changes = ConfigChanges(saved->second, job_.inputs().loaded.resolved);
  if (!changes.ok()) {
    job_.log().Warning(
        "what has changed since the checkpoint was saved is not known: its config.yaml cannot be "
        "read: {}",
        changes.status().message());
    return;
  }
  for (const options::ValueChange& change : *changes) {
    job_.log().Warning("changed since the checkpoint was saved: {}: {} -> {}", change.path,
                       change.before.value_or("not there"), change.after.value_or("not there"));
  }
}

RunEnd Task::Loop() {
  job_.context().world().Barrier();
  if (c_.trainer.check_replicas >= 0) CheckReplicas(fmt::format("before step {}", state_.step + 1));
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
    const int64_t every = c_.trainer.check_replicas;
    if ((every > 0 && step % every == 0) || (every >= 0 && SaveIsDue(end, last)))
      CheckReplicas(fmt::format("after step {}", step));
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
  if (state_.skipped_steps > 0) {
    job_.log().Warning(
        "{} updates of this run, {} of them the last ones, changed nothing: loss or gradient norm "
        "was not finite; look at the data, and at actor_rollout_ref.actor.optim.lr",
        state_.skipped_steps, state_.consecutive_skips);
  }
  job_.Finish();
  return RunEnd::kFinished;
}

bool Task::SaveIsDue(const StepEnd& end, bool last) const {
  return c_.trainer.save_freq > 0 && (last || end.stop || job_.SaveDue(last) || save_owed_);
}

void Task::CheckReplicas(const std::string& when) {
  for (const Role& role : SavedRoles())
    trainer::CheckReplicas(*role.engine, role.name, job_.context(), when);
  // It is not saved, but what is was learnt by it.
  if (reference_ != nullptr) trainer::CheckReplicas(*reference_, "reference", job_.context(), when);
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
