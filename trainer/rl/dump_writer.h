// DumpWriter: the responses of each step, or of each validation, as a file in a folder of the
// configuration's choice. Torch-free.
//
// What cannot be written, as on a full disk, is not what the run is for: a warning says it and
// counts, and no part of a file is left that a replay could take for the step's. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/metrics/run_start.h"

namespace keel::trainer::rl {

class DumpWriter {
 public:
  // `key` names `folder` in warnings; without a folder nothing is written. `log` must outlive this.
  DumpWriter(std::string key, std::optional<std::string> folder, Logger& log)
      : key_(std::move(key)), folder_(std::move(folder)), log_(log) {}

  // Leaves the files that are of this run (KeepStepFilesOf), so that a replay finds its responses
  // alone.
  void Begin(const RunStart& start, int64_t first_step);
  void Write(int64_t step, const RolloutBatch& batch);

 private:
  const std::string key_;
  const std::optional<std::string> folder_;
  Logger& log_;
  int64_t files_ = 0, lost_ = 0;
};

}  // namespace keel::trainer::rl
