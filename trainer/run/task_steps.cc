// Task's steps: how they follow each other, and what is saved and validated between them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/fail_point.h"
#include "trainer/run/replica_check.h"
#include "trainer/run/task.h"

namespace keel::trainer {

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
    job_.vote().Begin();
    const StepEnd end = Step(step);
    folder_->AfterStep(step, step_s_);
    CheckSkips(end);

    const bool last = step == total_steps_;
    const bool stop = job_.vote().stop();
    const bool save = SaveIsDue(last) || (stop && c_.trainer.save_freq > 0);
    const int64_t every = c_.trainer.check_replicas;
    if ((every > 0 && step % every == 0) || (every >= 0 && save))
      CheckReplicas(fmt::format("after step {}", step));
    // Whoever asked the run to stop waits for the save, not for a validation.
    if (c_.trainer.test_freq > 0 && (last || (step % c_.trainer.test_freq == 0 && !stop))) {
      RunValidation();
      if (job_.vote().busy()) CountVotes();  // it may have ended since
    }
    if (save && (last || stop)) {
      SaveLast(last);
    } else if (save) {
      SaveUnlessDiverging();
    }
    if (stop && !last) return Preempted();
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
  // Where nothing was left to do, an earlier start may have ended between its last save's commit
  // and what follows that.
  Finish(c_.trainer.save_freq > 0 && !folder_->saves().saved_step() &&
         state_.consecutive_skips == 0);
  Finished();
  return RunEnd::kFinished;
}

bool Task::SaveIsDue(bool last) const {
  const int64_t every = c_.trainer.save_freq;
  return every > 0 && (last || state_.step % every == 0 || save_owed_);
}

bool Task::WantsToStop() const {
  if (job_.StopRequested() || folder_->TooManySavesFailed()) return true;
  if (!c_.trainer.save_before_deadline || !job_.rank0()) return false;
  const auto limit = static_cast<double>(*ParseRunTime(*c_.trainer.save_before_deadline));
  // This step and one that is twice as slow, a validation after it, and a save that is half as slow
  // again.
  return job_.RunSeconds() + 3 * mean_step_s_ + 1.5 * validation_s_ +
             1.5 * folder_->expected_save_s() >=
         limit;
}

// What the updates of a step tell, without one.
void Task::CountVotes() {
  job_.vote().Begin();
  at::Tensor sums = at::tensor(job_.vote().Ballot(), at::kDouble).to(job_.device());
  job_.context().world().AllReduce(sums);
  job_.vote().Count(sums[0].item<double>(), sums[1].item<double>());
}

RunEnd Task::Preempted() {
  const SaveSession& saves = folder_->saves();
  if (folder_->TooManySavesFailed()) {
    job_.log().Error(
        "{} saves in a row have failed, as many as trainer.max_failed_saves allows: ends "
        "after step {}, which is not saved",
        saves.counts().failed_in_a_row, state_.step);
  } else if (saves.saved_step() == state_.step) {
    job_.log().Info("asked to stop: ends after step {}; the next start goes on from here",
                    state_.step);
  } else {
    job_.log().Warning(
        "asked to stop: ends after step {}, which is not saved; the next start goes on "
        "from the newest checkpoint, or from the beginning where there is none",
        state_.step);
  }
  Finish(false);
  return RunEnd::kPreempted;
}

void Task::Finish(bool settle) {
  ThrowIfError(FailPoint("trainer.close"));
  folder_->Close(state_.step, settle);
  job_.Leave();
  ThrowIfError(folder_->LastSave(state_.step));
}

void Task::CheckReplicas(const std::string& when) {
  for (const Role& role : SavedRoles())
    trainer::CheckReplicas(*role.engine, role.name, job_.context(), when);
  // It is not saved, but what is was learnt by it.
  if (reference_ != nullptr) trainer::CheckReplicas(*reference_, "reference", job_.context(), when);
}

// Where updates are being skipped, what led there may be in the weights already: such a state does
// not take the place of older ones.
void Task::SaveUnlessDiverging() {
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
  const Stopwatch watch;
  // A failed save, which has been logged, does not stop the run: the last good checkpoint is there.
  if (folder_->saves().MakeRoom(state_.step, job_.vote().busy())) folder_->saves().Save(Snapshot());
  blocked_s_ = watch.Elapsed();
  Phase("train");
}

// Before the run ends: returns when the step is on the disk, or when it cannot be any more.
void Task::SaveLast(bool finished) {
  Phase("save");
  folder_->FinishSaves(state_.step);
  if (folder_->saves().saved_step() == state_.step) return;
  if (!finished && !folder_->FitsIntoGrace(state_.step, job_.SecondsSinceStop())) return;
  folder_->saves().SaveAndWait(Snapshot());
  folder_->FinishSaves(state_.step);
}

void Task::RunValidation() {
  Phase("validate");
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

void Task::CountUpdates(UpdateCounts actor, UpdateCounts critic) {
  state_.optimizer_steps += actor.applied;
  state_.skipped_steps += actor.skipped + critic.skipped;
  if (actor.stuck() || critic.stuck()) {
    state_.consecutive_skips += actor.skipped + critic.skipped;
  } else if (actor.applied + critic.applied > 0) {
    state_.consecutive_skips = 0;
  }
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

checkpoint::SaveRequest Task::Snapshot() {
  const Stopwatch watch;
  checkpoint::SaveRequest request;
  request.step = state_.step;
  request.contents = checkpoint::Contents::Of(job_.actor().checkpoint.save_contents);
  request.config_digest = model_->config.Digest();
  const auto& layout = job_.context().layout();
  request.layout = {{"tp", layout.tp()}, {"dp", layout.dp()}, {"pp", layout.pp()}};
  if (job_.rank0()) {
    request.documents = model_->documents;
    request.documents.push_back({"config.yaml", job_.inputs().loaded.resolved, false});
    request.documents.push_back({"trainer_state.json", TrainerStateJson(state_), true});
    request.documents.push_back({"data_state.json", DataStateJson(state_, identity_), true});
  }
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
  AddDocuments(&request);
  request.taken_s = watch.Elapsed();
  return request;
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

}  // namespace keel::trainer
