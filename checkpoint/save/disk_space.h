// How much a save writes, and whether the disk will hold it: within 1 %, before anything is
// written.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/base/requests.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/save/save_planner.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

struct SaveSize {
  int64_t checkpoint_bytes = 0;  // of all files that are committed
  int64_t temporary_bytes = 0;  // of those that only serve to make others, and go before the commit
  int64_t total() const { return checkpoint_bytes + temporary_bytes; }
};

// Right to a few hundred bytes. Rank 0, which has all files of the plan.
SaveSize PredictSize(const SaveRequest& request, const SavePlan& plan, int64_t chunk_bytes);

// Returns what a run needs that saves checkpoints of `size`. See DiskForecast.
Result<DiskForecast> ForecastDisk(const FileSystem& fs, const RetentionPolicy& policy,
                                  const std::string& run_id, const SaveSize& size);

// kNoSpace when the file system tells of less room than `bytes`. `keep`: where retention removes
// nothing, the setting that would have it, of which the message then speaks; else "".
Status CheckRoom(const FileSystem& fs, int64_t bytes, std::string_view keep);

}  // namespace keel::checkpoint
