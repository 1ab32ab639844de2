// TaskRunner's steps: how they follow each other, and what is saved and validated between them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/fail_point.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/run/replica_check.h"
#include "trainer/run/task_runner.h"

namespace keel::trainer {

RunEnd TaskRunner::Loop() {
  job_.context().world().Barrier();
  if (c_.trainer.check_replicas >= 0) CheckReplicas(fmt::format("before step {}", state_.step + 1));
  task_->BeforeSteps();
  if (c_.trainer.val_before_train && state_.step == 0) RunValidation();
  while (state_.step < course_.total_steps()) {
    const int64_t step = state_.step + 1;
    job_.log().set_step(step);
    job_.context().set_step(step);
    job_.Phase("train", step);
    trace_.BeginStep(step);
    course_.BeginStep();
    ThrowIfError(FailPoint("step.begin"));
    job_.vote().Begin();
    ScopedSpan step_span(trace_.recorder(), "step");
    const std::optional<Task::StepEnd> end = task_->Step(step);
    step_span.End();
    if (!end) return StopWithin(step);
    folder_->AfterStep(step, course_.step_s());
    CheckSkips(*end);

    const bool last = step >= course_.total_steps();
    bool stop = job_.vote().stop();
    const auto saves = [&] { return SaveIsDue(last) || (stop && c_.trainer.save_freq > 0); };
    bool save = saves();
    const int64_t every = c_.trainer.check_replicas;
    const bool checked = (every > 0 && step % every == 0) || (every >= 0 && save);
    if (checked) CheckReplicas(fmt::format("after step {}", step));
    // Whoever asked the run to stop waits for the save, not for a validation.
    const bool validate = c_.trainer.test_freq > 0 && (last || step % c_.trainer.test_freq == 0);
    if (validate && stop && !last) {
      job_.log().Info("asked to stop: the validation of step {} is left out", step);
    } else if (validate) {
      RunValidation();
      job_.CountVotes();  // a save may have ended since, or a stop have been asked for
      stop = job_.vote().stop();
      save = saves();
      if (save && !checked && every >= 0) CheckReplicas(fmt::format("after step {}", step));
    }
    if (save && (last || stop)) {
      SaveLast(last);
    } else if (save) {
      SaveUnlessDiverging();
    }
    trace_.EndStep(step);
    if (stop && !last) return Preempted();
  }
  if (const int64_t total = course_.total_steps(); state_.step >= total) {
    job_.log().Info("all {} steps are done{}", total,
                    state_.step > total ? ": the checkpoint is of a later one" : "");
  }
  if (state_.skipped_steps > 0) {
    job_.log().Warning(
        "{} updates of this run, {} of them the last ones, changed nothing: loss or gradient norm "
        "was not finite; look at the data, and at actor_rollout_ref.actor.optim.lr",
        state_.skipped_steps, state_.consecutive_skips);
  }
  // Where nothing was left to do, an earlier start may have ended between its last save's commit
  // and what follows that.
  Finish(c_.trainer.save_freq > 0 && !folder_->saves().saved_step() &&
         state_.consecutive_skips == 0);
  task_->Finished();
  return RunEnd::kFinished;
}

bool TaskRunner::SaveIsDue(bool last) const {
  const int64_t every = c_.trainer.save_freq;
  return every > 0 && (last || state_.step % every == 0 || save_owed_);
}

bool TaskRunner::WantsToStop() const {
  if (job_.StopRequested() || folder_->TooManySavesFailed()) return true;
  if (!c_.trainer.save_before_deadline || !job_.rank0()) return false;
  const auto limit = static_cast<double>(*ParseRunTime(*c_.trainer.save_before_deadline));
  // This step and one that is twice as slow, a validation after it, and a save that is half as slow
  // again.
  return job_.RunSeconds() + 3 * course_.mean_step_s() + 1.5 * validation_s_ +
             1.5 * folder_->expected_save_s() >=
         limit;
}

// The step was left: nothing of it has happened.
RunEnd TaskRunner::StopWithin(int64_t step) {
  const Status why = task_->WhyLeft();
  const std::string said = why.ok() ? "asked to stop" : why.message();
  job_.log().Info("{}: step {} is left, the next start takes its prompts again", said, step);
  if (c_.trainer.save_freq > 0 && state_.step > 0 && task_->SavesAfterLeftStep()) SaveLast(false);
  trace_.EndStep(step);
  if (why.ok()) return Preempted();
  Finish(false);
  throw Error(why.WithContext(fmt::format("after step {}", state_.step)));
}

RunEnd TaskRunner::Preempted() {
  const SaveSession& saves = folder_->saves();
  if (folder_->TooManySavesFailed()) {
    job_.log().Error(
        "{} saves in a row have failed, as many as trainer.max_failed_saves allows: ends "
        "after step {}, which is not saved",
        saves.counts().failed_in_a_row, state_.step);
  } else if (saves.saved_step() == state_.step) {
    job_.log().Info(
        "asked to stop: ends after step {}; {}", state_.step,
        folder_->next_start_goes_on()
            ? "the next start goes on from here"
            : "a start with trainer.resume_mode auto and its load_contents those that are saved "
              "goes on from here, and so does a restart of this job (keel launch --max-restarts, "
              "Slurm's requeue); the same command by itself begins where this one began");
  } else {
    job_.log().Warning(
        "asked to stop: ends after step {}, which is not saved; {}", state_.step,
        c_.trainer.save_freq <= 0
            ? "trainer.save_freq says never: what this start has trained is lost"
        : folder_->next_start_goes_on()
            ? "the next start goes on from the newest checkpoint, or from the beginning where "
              "there is none"
            : "the next start begins where trainer.resume_mode and its load_contents say");
  }
  Finish(false);
  return RunEnd::kPreempted;
}

void TaskRunner::Finish(bool settle) {
  ThrowIfError(FailPoint("trainer.close"));
  folder_->Close(state_.step, settle);
  trace_.Close();
  connection_.Leave();
  folder_->TellSummary(course_.total_steps(), state_.step < course_.total_steps());
  ThrowIfError(folder_->LastSave(state_.step));
}

void TaskRunner::CheckReplicas(const std::string& when) {
  const ScopedSpan span(trace_.recorder(), "compare replicas");
  TrainEngine* reference = task_->reference().engine;
  for (const Task::Role& role : task_->SavedRoles()) {
    trainer::CheckReplicas(*role.engine, role.name, job_.context(), when);
    if (role.engine == reference) reference = nullptr;
  }
  // It is not saved, but what is was learnt by it.
  if (reference != nullptr) trainer::CheckReplicas(*reference, "reference", job_.context(), when);
}

// Where updates are being skipped, what led there may be in the weights already: such a state does
// not take the place of older ones.
void TaskRunner::SaveUnlessDiverging() {
  const bool diverging = state_.consecutive_skips > 0;
  if (diverging && !save_owed_) {
    job_.log().Warning(
        "step {} is not saved: loss or gradient norm is not finite; the next step where both are "
        "is saved",
        state_.step);
  }
  save_owed_ = diverging;
  if (diverging) return;
  Phase("save");
  const ScopedSpan span(trace_.recorder(), "start save");
  const Stopwatch watch;
  // A failed save, which has been logged, does not stop the run: the last good checkpoint is there.
  if (folder_->saves().MakeRoom(state_.step, job_.vote().busy())) folder_->saves().Save(Snapshot());
  course_.set_blocked_s(watch.Elapsed());
  Phase("train");
}

// Before the run ends: returns when the step is on the disk, or when it cannot be any more.
void TaskRunner::SaveLast(bool finished) {
  Phase("save");
  const ScopedSpan span(trace_.recorder(), "last save");
  folder_->FinishSaves(state_.step);
  if (folder_->saves().saved_step() == state_.step) return;
  if (!finished && !folder_->FitsIntoGrace(state_.step, job_.SecondsSinceStop())) return;
  const Stopwatch watch;
  folder_->saves().SaveAndWait(Snapshot());
  folder_->FinishSaves(state_.step);
  folder_->NoteLastSave(watch.Elapsed());
}

void TaskRunner::RunValidation() {
  Phase("validate");
  const ScopedSpan span(trace_.recorder(), "validate");
  validated_.reset();
  const Stopwatch watch;
  const std::optional<double> value = task_->Validate();
  // One that was left tells at least so much of how long they take.
  validation_s_ = value ? watch.Elapsed() : std::max(validation_s_, watch.Elapsed());
  if (!value && job_.vote().stop())
    job_.log().Info("asked to stop: the validation of step {} is left out", state_.step);
  if (value && std::isfinite(*value)) validated_ = {state_.step, *value};
}

void TaskRunner::CheckSkips(const Task::StepEnd& end) const {
  if (state_.consecutive_skips < c_.trainer.max_consecutive_skips) return;
  throw Error(
      StatusCode::kInvalidData,
      fmt::format("loss or gradient norm was not finite in {} updates in a row up to step "
                  "{} (loss {}, norm {}); lower {}.optim.lr or look at the data, and resume "
                  "from an older checkpoint",
                  state_.consecutive_skips, state_.step, end.loss, end.grad_norm, end.section));
}

checkpoint::SaveRequest TaskRunner::Snapshot() {
  const Stopwatch watch;
  checkpoint::SaveRequest request;
  request.step = state_.step;
  request.contents = checkpoint::Contents::Of(c_.actor_rollout_ref.actor.checkpoint.save_contents);
  request.config_digest = model_->config.Digest();
  const auto& layout = job_.context().layout();
  request.layout = {{"tp", layout.tp()}, {"dp", layout.dp()}, {"pp", layout.pp()}};
  if (job_.rank0()) {
    request.documents = model_->documents;
    // Not one of those that ranks compare: where the base lies may differ from node to node.
    if (base_)
      for (checkpoint::Document& document :
           AdapterDocuments(model_->config, model_->directory, *base_))
        request.documents.push_back(std::move(document));
    request.documents.push_back({"config.yaml", inputs_.loaded.resolved, false});
    request.documents.push_back(
        {"trainer_state.json", TrainerStateJson(state_), BelongsToExtra(request.contents)});
    request.documents.push_back(
        {"data_state.json", DataStateJson(state_, identity_, facts_), true});
  }
  for (const Task::Role& role : task_->SavedRoles()) {
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
  task_->AddDocuments(&request);
  request.taken_s = watch.Elapsed();
  return request;
}

}  // namespace keel::trainer
