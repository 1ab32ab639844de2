#include "trainer/run/save_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/clock.h"

namespace keel::trainer {

using checkpoint::SaveResult;

namespace {

// Steps whose median is what a step takes when nothing is saved.
constexpr size_t kRemembered = 21;
// The first steps warm up.
constexpr size_t kFewest = 3;

}  // namespace

double SaveSession::Baseline() const {
  if (undisturbed_.size() < kFewest) return -1;
  std::vector<double> sorted = undisturbed_;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2),
                   sorted.end());
  return sorted[sorted.size() / 2];
}

bool SaveSession::MakeRoom(int64_t step, bool busy_somewhere) {
  if (!options_.async_save) return true;
  if (busy_somewhere && options_.on_busy == OnBusy::kSkip) {
    ++counts_.skipped;
    log_.Warning("step {} is not saved: the save before it is still in flight ({} skipped so far)",
                 step, counts_.skipped);
    return false;
  }
  // Two in a row are not given up: with saves that take longer than the steps between them there
  // would never be one.
  superseded_ = busy_somewhere && options_.on_busy == OnBusy::kSupersede && !superseded_;
  if (superseded_) {
    checkpointer_.Cancel();
    // Unless it is being published already; counts().superseded says what became of it.
    log_.Warning("the save in flight is asked to give way to that of step {} ({} have, so far)",
                 step, counts_.superseded);
  } else if (busy_somewhere) {
    ++counts_.waited;
  }
  const Stopwatch waiting;
  const Status ended = busy_somewhere ? checkpointer_.WaitOnAll() : Status::Ok();
  Note(checkpointer_.Finished());
  waited_s_ = busy_somewhere ? waiting.Elapsed() : 0;
  if (!ended.ok()) NoteFailed(step, ended);
  return ended.ok();
}

void SaveSession::Save(checkpoint::SaveRequest request) {
  if (!options_.async_save) return SaveAndWait(request);
  const int64_t step = request.step;
  const Status started = checkpointer_.StartSave(std::move(request));
  if (!started.ok()) return NoteFailed(step, started);
  disturbed_ = true;
  disturbed_s_ = 0;
  // `blocking`: training goes on only when all of the state has been copied.
  if (options_.staging.mode == StagingMode::kBlocking)
    (void)checkpointer_.WaitFree(nullptr, std::numeric_limits<size_t>::max());
}

void SaveSession::SaveAndWait(const checkpoint::SaveRequest& request) {
  const Status waited = options_.async_save ? checkpointer_.WaitOnAll() : Status::Ok();
  Note(checkpointer_.Finished());
  if (!waited.ok()) return NoteFailed(request.step, waited);
  disturbed_ = false;
  SaveResult result;
  result.record.step = request.step;
  Result<checkpoint::SaveRecord> saved = checkpointer_.Save(request);
  result.status = saved.status();
  if (saved.ok()) result.record = std::move(saved).value();
  Count(request.step, result.status);
  ended_.push_back(std::move(result));
}

void SaveSession::Count(int64_t step, const Status& status) {
  last_status_ = status;
  if (status.ok()) {
    saved_step_ = step;
    counts_.failed_in_a_row = 0;
    return;
  }
  ++counts_.failed;
  if (++counts_.failed_in_a_row < 2 || log_.rank() > 0) return;
  log_.Warning("{} saves in a row have failed, {} since this start: {}", counts_.failed_in_a_row,
               counts_.failed,
               saved_step_ ? fmt::format("the newest that did not is that of step {}", *saved_step_)
                           : std::string("none has ended well"));
}

// Background saves that have ended: their cost, their line in checkpoints.jsonl.
void SaveSession::Note(std::vector<SaveResult> ended) {
  for (SaveResult& result : ended) {
    if (result.status.code() == StatusCode::kCancelled) {
      last_status_ = result.status;
      ++counts_.superseded;
    } else {
      Count(result.record.step, result.status);
    }
    if (result.status.ok()) {
      result.record.blocked_s += std::exchange(waited_s_, 0);
      // What the fence held up is in the steps already, once there is what to compare them to.
      const bool compared = Baseline() >= 0;
      result.record.lost_s = std::max(
          0.0, result.record.blocked_s + (compared ? disturbed_s_ - result.record.fence_s : 0));
    }
    checkpointer_.Note(result);
    ended_.push_back(std::move(result));
  }
}

void SaveSession::NoteFailed(int64_t step, const Status& status) {
  log_.Error("step {} is not saved: {}", step, status.message());
  SaveResult failed;
  failed.status = status;
  failed.record.step = step;
  Note({failed});
}

std::vector<SaveResult> SaveSession::AfterStep(double seconds) {
  if (disturbed_) {
    if (const double baseline = Baseline(); baseline >= 0) disturbed_s_ += seconds - baseline;
  } else {
    undisturbed_.push_back(seconds);
    if (undisturbed_.size() > kRemembered) undisturbed_.erase(undisturbed_.begin());
  }
  Note(checkpointer_.Finished());
  disturbed_ = checkpointer_.busy();
  return std::exchange(ended_, {});
}

std::vector<SaveResult> SaveSession::Finish() {
  if (const Status status = checkpointer_.Wait(); !status.ok()) last_status_ = status;
  Note(checkpointer_.Finished());
  return std::exchange(ended_, {});
}

}  // namespace keel::trainer
