#include "common/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace keel {

void RunInBackground() {
  constexpr int kNice = 10;  // a weight of 110 beside 1024; Linux keeps it by thread
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace keel
