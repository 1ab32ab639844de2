#include "checkpoint/run/run_lock.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "checkpoint/format/names.h"
#include "common/process/host_name.h"
#include "common/text.h"

namespace keel::checkpoint {

namespace {

// How long a lock is waited for whose holder is no more: programs that it had forked, as the
// workers of a data loader, hold it until they have noticed.
constexpr std::chrono::seconds kOrphans{10};
constexpr std::chrono::milliseconds kLookAgain{50};
// And for a moment whoever holds it: `keel watch` does while it looks whether another does.
constexpr std::chrono::milliseconds kGlance{300};

// Of this host, as the line says that Take writes.
bool HolderIsDead(FileSystem& fs) {
  const Result<std::string> holder = ReadFile(fs, kLockName, 4096);
  if (!holder.ok()) return false;
  const std::string here = fmt::format(", host {}, pid ", HostName());
  const size_t at = holder->find(here);
  if (at == std::string::npos) return false;
  pid_t pid = 0;
  const char* const digits = holder->data() + at + here.size();
  std::from_chars(digits, holder->data() + holder->size(), pid);
  return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

RunLock::RunLock(FileSystem& fs, std::string holder, std::shared_ptr<void> lock)
    : fs_(fs), holder_(std::move(holder)), lock_(std::move(lock)) {}

Result<std::unique_ptr<RunLock>> RunLock::Take(FileSystem& fs, std::string_view who,
                                               const Clock& clock) {
  std::string holder = fmt::format("{}, host {}, pid {}, since {}", who, HostName(), getpid(),
                                   FormatUtc(clock.Wall()));
  Result<std::shared_ptr<void>> lock = fs.Lock(kLockName, holder);
  const Stopwatch watch(clock);
  while (lock.status().code() == StatusCode::kBusy &&
         (watch.Elapsed() * 1000 < kGlance.count() ||
          (watch.Elapsed() < kOrphans.count() && HolderIsDead(fs)))) {
    std::this_thread::sleep_for(kLookAgain);
    lock = fs.Lock(kLockName, holder);
  }
  if (lock.status().code() == StatusCode::kBusy) {
    return lock.status().WithContext(fmt::format(
        "{} is in use; wait for that to end or choose another directory", fs.Describe(".")));
  }
  KEEL_RETURN_IF_ERROR(lock.status());
  std::unique_ptr<RunLock> taken(new RunLock(fs, std::move(holder), std::move(lock).value()));
  KEEL_ASSIGN_OR_RETURN(const FileInfo file, fs.Stat(kLockName));
  taken->inode_ = file.inode;
  KEEL_ASSIGN_OR_RETURN(taken->line_, ReadFile(fs, kLockName, 4096));
  return taken;
}

Status RunLock::Check() const {
  const Result<std::string> holder = ReadFile(fs_, kLockName, 4096);
  const Result<FileInfo> file = fs_.Stat(kLockName);
  const bool same = file.ok() && file->inode == inode_;
  if (same && holder.ok() && *holder == line_) return Status::Ok();
  return Status(StatusCode::kBusy,
                fmt::format("{} was taken over ({}); this one, {}, may not publish there any more",
                            fs_.Describe("."),
                            !holder.ok()      ? holder.status().message()
                            : holder->empty() ? std::string("by one that has left again")
                                              : Printable(*holder),
                            holder_));
}

Status SeeLock(FileSystem& fs, std::string_view line, std::chrono::milliseconds grace) {
  const Stopwatch watch;
  for (;;) {
    const Result<std::string> found = ReadFile(fs, kLockName, 4096);
    if (line.empty()) return Status::Ok();
    if (found.ok() && *found == line) {
      const Status writes = fs.Append(kLockName, "");
      if (writes.ok()) return Status::Ok();
      return Status(StatusCode::kConfig,
                    fmt::format("{} cannot be written to ({}). Every rank writes its part of each "
                                "save: mount the folder for writing on every node",
                                fs.Describe("."), writes.message()));
    }
    if (watch.Elapsed() >= std::chrono::duration<double>(grace).count())
      return Status(
          StatusCode::kConfig,
          fmt::format("{} is not the folder that rank 0 saves to: its {} {}, expected '{}'. All "
                      "ranks need one folder: mount it on every node, or give each node its own "
                      "path to it",
                      fs.Describe("."), kLockName,
                      found.ok() ? fmt::format("says '{}'", Printable(*found))
                                 : fmt::format("cannot be read ({})", found.status().message()),
                      Printable(line)));
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace keel::checkpoint
