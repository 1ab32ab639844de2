#include "tools/stop_signals.h"

#include <signal.h>

#include <cstdlib>
#include <ctime>

#include "common/process/signal_handler.h"
#include "parallel/launch_env.h"

namespace keel::tools {

namespace {

// One that comes within this time is the same request: whoever ends a whole control group signals
// the rank, and the launcher, which passes it on.
constexpr int64_t kSameRequest_ns = 1'000'000'000;

// A second one ends the process at once; what it was saving is removed by the next start.
extern "C" void OnStopSignal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  int64_t first_ns = 0;
  StopState& state = TheStopState();
  if (state.requested.compare_exchange_strong(first_ns, now_ns)) return;
  if (now_ns - first_ns <= kSameRequest_ns) return;
  state.status->SetStopped();
  std::_Exit(128 + number);
}

}  // namespace

StopState& TheStopState() {
  static auto& state = *new StopState();  // never freed
  return state;
}

void TakeStopSignals(std::string_view command) {
  const bool trains = command == "train";
  if (trains || command == "rollout") {
    StopState& state = TheStopState();
    const auto file = parallel::ProcessEnvironment()("KEEL_STATUS_FILE");
    state.status = std::make_unique<parallel::RankStatus>(file.value_or(""));
    if (trains) state.status->Set(0, "start");  // a worker that joins is at no step
    for (const int number : {SIGTERM, SIGUSR1}) ThrowIfError(HandleSignal(number, OnStopSignal));
  }
  sigset_t held;
  sigemptyset(&held);
  for (const int number : kJobSignals) sigaddset(&held, number);
  pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

}  // namespace keel::tools
