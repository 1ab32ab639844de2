// Catalog: which checkpoints a run directory holds, read from the disk each time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "common/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

struct CatalogEntry {
  std::string directory;             // "global_step_40"
  int64_t step = 0;                  // of the name
  std::optional<Manifest> manifest;  // nothing when it does not verify
  Status status;                     // why not
};

// The directories named global_step_<N>, the newest commit first: by the manifests' sequence
// numbers, so that a run that went back to an earlier step resumes from what it did last. Those
// without a valid manifest come last, by step. Links and files of such names are not listed.
Result<std::vector<CatalogEntry>> ListCheckpoints(const FileSystem& fs);

}  // namespace keel::checkpoint
