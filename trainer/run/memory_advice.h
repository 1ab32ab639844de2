// What a rank adds to a message where it has run out of something. Torch-free.
#pragma once

#include <string_view>

#include "common/status.h"

namespace keel::trainer {

// `status` with the `place` where that was: "on rank 0 at step 1 (train)". With `advice` where its
// cause is memory; of other limits, as of threads and open files, its message says what to do.
Status WithMemoryAdvice(const Status& status, std::string_view place, std::string_view advice);

}  // namespace keel::trainer
