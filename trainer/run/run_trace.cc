#include "trainer/run/run_trace.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "common/clock.h"
#include "common/guarded.h"

namespace keel::trainer {

namespace {

// How often the ranks meet. The first meeting is where the slowest of them is waited for; of the
// others the middle one is taken.
constexpr int kMeetings = 9;

std::string HostNameForTrace() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// The kernel's name of this start of the machine: all that have it share the monotonic clock.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

int64_t UnixNow_ns() {
  return std::chrono::nanoseconds(SystemClock().Wall().time_since_epoch()).count();
}

TraceHeader HeaderOf(parallel::ParallelContext& context) {
  TraceHeader header;
  header.rank = context.rank();
  header.world = context.layout().world();
  header.tp = context.tp_rank();
  header.dp = context.dp_rank();
  header.pp = context.pp_rank();
  header.host = HostNameForTrace();
  header.boot = BootId();
  header.pid = getpid();
  // 1. What all of this start have alike.
  at::Tensor start = at::tensor({UnixNow_ns()}, at::kLong);
  if (context.options().cuda)
    start = start.to(
        at::Device(at::kCUDA, static_cast<at::DeviceIndex>(context.options().device_index)));
  context.world().Broadcast(start, 0);
  header.start = start.item<int64_t>();
  // 2. Moments that are the same for all, but for how long a barrier takes to end everywhere.
  context.world().Barrier();
  for (int i = 0; i < kMeetings; ++i) {
    context.world().Barrier();
    header.meetings_ns.push_back(SystemClock().Monotonic().count());
  }
  header.unix_ns = UnixNow_ns();
  header.monotonic_ns = SystemClock().Monotonic().count();
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

bool RunTrace::IsTraced(int64_t step) const {
  const std::vector<int64_t>& steps = trainer_.trace.steps;
  return steps.empty() || (step >= steps[0] && step <= steps[1]);
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
  recorder_->SetStep(resumed_step, IsTraced(resumed_step));
}

void RunTrace::BeginStep(int64_t step) {
  step_ = step;
  if (file_) recorder_->SetStep(step, IsTraced(step));
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
