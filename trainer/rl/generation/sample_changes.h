// What has changed between a checkpoint and this start of the run on which its samples depend: a
// response that was begun under other settings, or scored by another reward, is none of this run's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/run/run_state.h"

namespace keel::trainer::rl {

// The names of keys (SampleKeys, trainer/config/config.h) whose values differ from those in the
// checkpoint's config.yaml, then of `contents` that are not those in its data_state.json; see
// Task::Documents. `resolved`: this run's configuration. A checkpoint without a configuration is no
// training's, and one without contents is older than they are: nothing is said against those. One
// whose configuration cannot be read says that. kInvalidData: its data_state.json cannot be.
Result<std::vector<std::string>> SampleChanges(const std::map<std::string, std::string>& documents,
                                               const std::string& resolved,
                                               const ReadContents& contents);

}  // namespace keel::trainer::rl
