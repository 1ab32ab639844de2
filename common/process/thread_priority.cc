#include "common/process/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace keel {

void RunInBackground() {
  constexpr int kNicer = 10;  // a weight of 110 beside 1024; Linux keeps it by thread
  constexpr int kNicest = 19;
  const auto thread = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, thread, std::min(kNicest, getpriority(PRIO_PROCESS, thread) + kNicer));
}

}  // namespace keel
