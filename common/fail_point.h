// Fail points: named places where a test makes the real program die, stop, fail or wait.
//
// Compiled in, off unless the environment arms them; then an unarmed one costs one load.
//
//   KEEL_FAILPOINT=name:rank:n:action[,name:rank:n:action...]
//
// `rank` and `n` (the n-th time that this rank gets there, from 1) are numbers or *. Actions:
//   kill           SIGKILL to this process          stop            SIGSTOP, until SIGCONT
//   throw          an exception of unknown kind     delay=250       waits so many milliseconds
//   kill_parent    SIGKILL to the launcher of this process, which then waits for its own end
//   ENOSPC, EIO, EDQUOT, EROFS, EMFILE, EINTR       fails with that errno
// docs/fail-points.md lists the names.
#pragma once

#include <span>
#include <string_view>

#include "common/status.h"

namespace keel {

// Every name that there is, sorted.
std::span<const std::string_view> FailPointNames();

// Reads KEEL_FAILPOINT for this rank; kUsage names what is not understood. Call once, at the start;
// without it nothing is armed.
Status ArmFailPoints(int rank);
// The same from a text; "" disarms all.
Status ArmFailPoints(std::string_view text, int rank);

// Ok, or the armed failure, if the action lets it return at all.
Status FailPoint(std::string_view name);

}  // namespace keel

// In functions that return a Status or a Result.
#define KEEL_FAIL_POINT(name) KEEL_RETURN_IF_ERROR(::keel::FailPoint(name))
