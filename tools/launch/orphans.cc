#include "tools/launch/orphans.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>

namespace keel::tools {

Status AdoptOrphans() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) == 0) return Status::Ok();
  return Status::FromErrno(errno, "prctl PR_SET_CHILD_SUBREAPER for", "what ranks leave behind");
}

bool ReapOrphans(const std::function<bool(pid_t)>& is_rank) {
  while (true) {
    siginfo_t info{};
    // Not reaped yet, so that the number of its group cannot have passed to another.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno != ECHILD;
    if (info.si_pid == 0 || is_rank(info.si_pid)) return true;
    // One that ended by itself may have been on its way to make a server of what it started.
    if (info.si_code == CLD_KILLED && info.si_status == SIGKILL) kill(-info.si_pid, SIGKILL);
    waitpid(info.si_pid, nullptr, 0);
  }
}

}  // namespace keel::tools
