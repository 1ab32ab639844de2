// The lock of a run directory: one run, or one tool that changes its checkpoints, at a time.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// Held until the returned object dies, or its process. Notes `holder` (a run's id, or a command),
// host, process and time beside the lock, for whoever comes second: kBusy, at once, names them.
Result<std::shared_ptr<void>> TakeRunLock(FileSystem& fs, const std::string& holder,
                                          const Clock& clock, Logger& log);

}  // namespace keel::checkpoint
