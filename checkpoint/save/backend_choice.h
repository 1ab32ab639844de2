// BackendChoice: which back-end the saves of a run are written by.
//
// Rank 0 chooses for all, by the configuration or by a short measurement; a rank whose machine
// lacks what was chosen helps itself, where the configuration leaves it free. One per rank, used by
// one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/save/io_backend.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

class BackendChoice {
 public:
  // Messages know `wanted` as the setting `setting`. The references outlive this.
  BackendChoice(FileSystem& fs, IoChoice wanted, std::string_view setting, int rank, Logger& log);

  // Returns what is wanted, or the one that works everywhere, where nothing can be measured.
  IoBackend Unmeasured() const;
  // Rank 0. For saves of which a rank writes up to so many bytes. A measurement, made once, writes
  // to `directory` and says in the log what it found.
  IoBackend Choose(int64_t largest_rank_bytes, const std::string& directory);
  // The ordered one, or with `auto` what this rank's machine has instead. kConfig without.
  Result<IoBackend> Usable(IoBackend ordered);

 private:
  FileSystem& fs_;
  const std::optional<IoBackend> wanted_;  // nothing: the fastest
  const std::string_view setting_;
  const int rank_;
  Logger& log_;
  bool said_small_ = false;
  std::optional<IoBackend> measured_;  // rank 0: the fastest, once measured
  std::optional<Status> io_uring_;     // whether this machine has it, once asked
};

}  // namespace keel::checkpoint
