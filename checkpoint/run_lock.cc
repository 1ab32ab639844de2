#include "checkpoint/run_lock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "checkpoint/names.h"
#include "common/text.h"

namespace keel::checkpoint {

RunLock::RunLock(FileSystem& fs, std::string holder, std::shared_ptr<void> lock)
    : fs_(fs), holder_(std::move(holder)), lock_(std::move(lock)) {}

Result<std::unique_ptr<RunLock>> RunLock::Take(FileSystem& fs, std::string_view who,
                                               const Clock& clock) {
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  std::string holder =
      fmt::format("{}, host {}, pid {}, since {}", who, host, getpid(), FormatUtc(clock.Wall()));
  Result<std::shared_ptr<void>> lock = fs.Lock(kLockName, holder);
  if (lock.status().code() == StatusCode::kBusy) {
    return lock.status().WithContext(fmt::format(
        "{} is in use; wait for that to end or choose another directory", fs.Describe(".")));
  }
  KEEL_RETURN_IF_ERROR(lock.status());
  return std::unique_ptr<RunLock>(new RunLock(fs, std::move(holder), std::move(lock).value()));
}

Status RunLock::Check() const {
  const Result<std::string> holder = ReadFile(fs_, kLockName, 4096);
  // Empty: the disk had no room for that line when the lock was taken.
  if (holder.ok() && (*holder == holder_ || holder->empty())) return Status::Ok();
  return Status(StatusCode::kBusy,
                fmt::format("{} was taken over ({}); this one, {}, may not publish there any more",
                            fs_.Describe("."),
                            holder.ok() ? Printable(*holder) : holder.status().message(), holder_));
}

}  // namespace keel::checkpoint
