#include "common/files/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>

namespace keel {

Status RaiseOpenFileLimit(int64_t needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return Status::FromErrno(errno, "getrlimit", "RLIMIT_NOFILE");
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
      return Status::FromErrno(errno, "setrlimit", "RLIMIT_NOFILE");
  }
  if (limit.rlim_max >= static_cast<rlim_t>(needed)) return Status::Ok();
  return Status(StatusCode::kExhausted,
                fmt::format("this process may have {} files and sockets open, and will need about "
                            "{}: raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd, "
                            "--ulimit nofile= of a container)",
                            limit.rlim_max, needed));
}

}  // namespace keel
