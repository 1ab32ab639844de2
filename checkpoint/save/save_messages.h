// What ranks tell each other in a save, as bytes for the coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/base/copy_check.h"
#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/save_records.h"
#include "checkpoint/save/io_backend.h"
#include "common/status.h"

namespace keel::checkpoint {

// Rank 0 to all, at the start.
struct SaveOrder {
  std::string temporary;  // directory
  std::string save_id;
  IoBackend io = IoBackend::kBuffered;
  bool read_back = false;  // every byte is to be read again before the commit

  std::string Encode() const;
  static Result<SaveOrder> Decode(std::string_view bytes);
};

// Each rank to rank 0, when its files are on the disk.
struct SaveReport {
  std::vector<std::pair<std::string, ChunkedDigest>> files;
  RankRecord record;
  uint64_t weights_digest = 0;     // this rank's part of the digest of SaveRequest::digest_role
  std::vector<CopyDigest> copies;  // of RoleState::shared, those that this rank has

  std::string Encode() const;
  static Result<SaveReport> Decode(std::string_view bytes);
};

// Rank 0 to all, when the step is committed.
struct SaveOutcome {
  int64_t total_bytes = 0;
  double seconds = 0;  // since rank 0 began

  std::string Encode() const;
  static Result<SaveOutcome> Decode(std::string_view bytes);
};

}  // namespace keel::checkpoint
