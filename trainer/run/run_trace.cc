#include "trainer/run/run_trace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"

namespace keel::trainer {

namespace {

// How often the ranks meet. The first meeting is where the slowest of them is waited for; of the
// others the middle one is taken.
constexpr int kMeetings = 9;

TraceHeader HeaderOf(parallel::ParallelContext& context) {
  // 1. What all of this start have alike.
  at::Tensor start = at::tensor({HeaderOfThisProcess().unix_ns}, at::kLong);
  if (context.options().cuda)
    start = start.to(
        at::Device(at::kCUDA, static_cast<at::DeviceIndex>(context.options().device_index)));
  context.world().Broadcast(start, 0);
  // 2. Moments that are the same for all, but for how long a barrier takes to end everywhere.
  std::vector<int64_t> meetings_ns;
  context.world().Barrier();
  for (int i = 0; i < kMeetings; ++i) {
    context.world().Barrier();
    meetings_ns.push_back(SystemClock().Monotonic().count());
  }
  // 3. The clocks, at a moment after these.
  TraceHeader header = HeaderOfThisProcess();
  header.rank = context.rank();
  header.world = context.layout().world();
  header.tp = context.tp_rank();
  header.dp = context.dp_rank();
  header.pp = context.pp_rank();
  header.start = start.item<int64_t>();
  header.meetings_ns = std::move(meetings_ns);
  return header;
}

}  // namespace

RunTrace::RunTrace(const TrainerSection& trainer, Logger& log) : trainer_(trainer), log_(log) {
  if (trainer.trace.enable) recorder_ = std::make_unique<SpanRecorder>();
}

RunTrace::~RunTrace() {
  // After an error, what led to it.
  (void)Guarded([this] {
    Close();
    return Status::Ok();
  });
}

void RunTrace::Begin(parallel::ParallelContext& context, int64_t resumed_step) {
  if (std::ranges::count(trainer_.profile.ranks, context.rank()) > 0)
    profile_ = std::make_unique<OperatorProfile>(trainer_.default_local_dir, trainer_.profile.steps,
                                                 context.rank(), log_);
  if (!recorder_) return;
  const TraceHeader header = HeaderOf(context);
  Result<TraceFile> file = TraceFile::Open(trainer_.default_local_dir, header, resumed_step,
                                           trainer_.trace.max_megabytes << 20, log_);
  // Of use to people, not to the run.
  if (!file.ok()) {
    log_.Warning("nothing is traced: {}", file.status().message());
    return;
  }
  file_.emplace(std::move(file).value());
  step_ = resumed_step;
  recorder_->SetStep(resumed_step, trainer_.trace.Covers(resumed_step));
}

void RunTrace::BeginStep(int64_t step) {
  step_ = step;
  if (file_) recorder_->SetStep(step, trainer_.trace.Covers(step));
  if (profile_) profile_->BeginStep(step);
}

void RunTrace::EndStep(int64_t step) {
  if (profile_) profile_->EndStep(step);
  if (file_) file_->Write(step, *recorder_);
}

void RunTrace::Close() {
  if (!file_) return;
  file_->Write(step_, *recorder_);
  file_->Close();
}

}  // namespace keel::trainer
