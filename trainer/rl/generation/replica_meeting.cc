#include "trainer/rl/generation/replica_meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "common/clock.h"

namespace keel::trainer::rl {

namespace {

// Between two looks at who is there.
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

// Each rank says under which number it was started this time, the replica's name is made of all
// their numbers, and each says that it is there under that name. A number that a lost rank left is
// part of a name under which that rank never appears: the others look again.
Result<std::string> MeetReplica(const parallel::Store& store, int replica, int rank, int size,
                                std::chrono::milliseconds deadline) {
  const std::string root = fmt::format("replica_{}", replica);
  KEEL_ASSIGN_OR_RETURN(const int64_t mine, store.Add(root + "/starts", 1));
  KEEL_RETURN_IF_ERROR(store.Set(fmt::format("{}/rank_{}", root, rank), std::to_string(mine)));
  const Stopwatch watch;
  while (true) {
    int missing = -1;
    std::string name = root;
    for (int r = 0; r < size && missing < 0; ++r) {
      const Result<std::string> start =
          store.Get(fmt::format("{}/rank_{}", root, r), std::chrono::milliseconds(0));
      if (!start.ok() && start.status().code() != StatusCode::kDeadlineExceeded)
        return start.status();
      if (start.ok()) name += "_" + *start;
      if (!start.ok()) missing = r;
    }
    if (missing < 0) KEEL_RETURN_IF_ERROR(store.Set(fmt::format("{}/here_{}", name, rank), "1"));
    for (int r = 0; r < size && missing < 0; ++r) {
      const Result<std::string> here = store.Get(fmt::format("{}/here_{}", name, r),
                                                 r == rank ? std::chrono::milliseconds(0) : kLook);
      if (!here.ok() && here.status().code() != StatusCode::kDeadlineExceeded) return here.status();
      if (!here.ok()) missing = r;
    }
    if (missing < 0) return name;
    if (watch.Elapsed() * 1000 > static_cast<double>(deadline.count())) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("rank {} of rollout replica {} was not there within {} s", missing,
                                replica, deadline.count() / 1000));
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace keel::trainer::rl
