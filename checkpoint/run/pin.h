// Pin: a mark that retention, `keel ckpt prune` and a re-save of the same step respect.
//
// It is a file `pinned` in the step's directory, outside the manifest: it goes where the checkpoint
// goes, goes with it, and can be made and removed while a run is using the run directory.
#pragma once

#include <string_view>

#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// Anything of that name counts, and so does one that cannot be looked at: in doubt it is pinned.
bool IsPinned(const FileSystem& fs, std::string_view directory);
// The same, with the doubt as an error.
Result<bool> LookForPin(const FileSystem& fs, std::string_view directory);

// Durable when it returns; a checkpoint that is pinned already stays so. kNotFound when there is
// none, or it is just being removed; kInvalidData or kDataLoss when it is not valid.
Status PinCheckpoint(FileSystem& fs, std::string_view directory, const Clock& clock);
// Likewise, and of a damaged checkpoint too, since retention keeps what is pinned; of one that is
// not pinned, nothing to do. kNotFound when there is no manifest.
Status UnpinCheckpoint(FileSystem& fs, std::string_view directory);

}  // namespace keel::checkpoint
