// Settings that are each right, and do together not what one would think: a run goes on with them,
// and says so.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace keel::trainer {

// Each a sentence that names the keys; none where there is nothing to say.
std::vector<std::string> Remarks(const Config& config);

}  // namespace keel::trainer
