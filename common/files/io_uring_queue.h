// Writes to files of the operating system through io_uring.
#pragma once

#include <memory>

#include "common/files/write_queue.h"
#include "common/status.h"

namespace keel {

// A queue for PosixFiles with up to `depth` writes under way. kUnavailable, with the reason, where
// the kernel is too old or does not let this process use io_uring.
Result<std::unique_ptr<WriteQueue>> MakeIoUringQueue(int depth);

}  // namespace keel
