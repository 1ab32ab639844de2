#include "checkpoint/run_lock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "checkpoint/names.h"
#include "common/json.h"

namespace keel::checkpoint {

Result<std::shared_ptr<void>> TakeRunLock(FileSystem& fs, const std::string& holder,
                                          const Clock& clock, Logger& log) {
  Result<std::shared_ptr<void>> taken = fs.Lock(kLockName);
  if (!taken.ok()) {
    const Result<std::string> owner = ReadFile(fs, kLockOwnerName, 4096);
    return taken.status().WithContext(fmt::format("{} is in use{}; wait for it to end",
                                                  fs.Describe("."),
                                                  owner.ok() ? " by " + *owner : std::string()));
  }
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  const Json owner = {
      {"host", host}, {"pid", getpid()}, {"run_id", holder}, {"since", FormatUtc(clock.Wall())}};
  if (const Status status = ReplaceFileDurably(fs, kLockOwnerName, owner.dump()); !status.ok()) {
    log.Warning("the owner of the run directory's lock could not be noted: {}", status.message());
  }
  return taken;
}

}  // namespace keel::checkpoint
