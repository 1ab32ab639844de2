// Takes io_uring from this process, as a container's seccomp profile does.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

namespace keel::testing {

// From now on, in this thread and those that it makes, io_uring_setup fails with `error`. False
// when that cannot be had. For good: call it in a child process.
inline bool RefuseIoUring(int error) {
  const auto refusal = static_cast<uint32_t>(SECCOMP_RET_ERRNO | (error & SECCOMP_RET_DATA));
  sock_filter filter[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
      {BPF_RET | BPF_K, 0, 0, refusal},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace keel::testing
