// Lease: what keeps a checkpoint in place while someone reads it.
//
// An advisory lock on the checkpoint's manifest.json: shared for readers, exclusive for whoever
// wants to remove the checkpoint. The kernel ends it with the process that holds it, so a reader
// that dies keeps nothing. Thread-safe; a lease ends with the returned object.
#pragma once

#include <memory>
#include <string_view>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

using Lease = std::shared_ptr<void>;

// Held by everything that reads a checkpoint. kNotFound when it is not there or is being removed,
// kInvalidData when the directory or its manifest is a link or something else of another kind. Null
// where the file system knows no locks: nothing protects the reader there.
Result<Lease> LeaseForReading(const FileSystem& fs, std::string_view directory);

// kBusy while someone reads it. Null where the file system knows no locks, and for a tree without a
// manifest, which nobody can be reading.
Result<Lease> LeaseForRemoval(const FileSystem& fs, std::string_view directory);

}  // namespace keel::checkpoint
