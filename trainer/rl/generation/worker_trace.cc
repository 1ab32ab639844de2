#include "trainer/rl/generation/worker_trace.h"

#include <utility>

#include "common/guarded.h"

namespace keel::trainer::rl {

namespace {

// Between two writes to the file, at least.
constexpr int64_t kWriteEvery_ns = 1'000'000'000;

}  // namespace

WorkerTrace::~WorkerTrace() {
  span_.reset();
  // After an error, what led to it.
  (void)Guarded([this] {
    if (!file_) return Status::Ok();
    Write();
    file_->Close();
    return Status::Ok();
  });
}

void WorkerTrace::Open(const WorkerPlace& place, int64_t step) {
  asked_ = true;
  TraceHeader header = HeaderOfThisProcess();
  header.rank = place.rank;
  header.world = place.world;
  header.tp = place.tp;
  header.role = "generates";
  header.start = header.unix_ns;  // it meets nobody, and begins by itself
  Result<TraceFile> file = TraceFile::Open(trainer_.default_local_dir, header, step - 1,
                                           trainer_.trace.max_megabytes << 20, log_);
  if (file.ok()) {
    file_.emplace(std::move(file).value());
  } else {
    // Of use to people, not to the run.
    log_.Warning("nothing is traced: {}", file.status().message());
  }
}

void WorkerTrace::Serve(const WorkerPlace& place, int64_t step) {
  if (!trainer_.trace.enable) return;
  if (!asked_) Open(place, step);
  if (!file_) return;
  Write();
  step_ = step;
  recorder_.SetStep(step, trainer_.trace.Covers(step));
}

void WorkerTrace::Now(const char* what) {
  if (!file_ || what_ == what) return;
  what_ = what;
  span_.emplace(&recorder_, what, SpanDetails{.lane = SpanLane::kGeneration});
  if (recorder_.Now() - written_ns_ >= kWriteEvery_ns) Write();
}

void WorkerTrace::Write() {
  file_->Write(step_, recorder_);
  written_ns_ = recorder_.Now();
}

}  // namespace keel::trainer::rl
