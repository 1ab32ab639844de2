// Whether a checkpoint is what a load asks for.
#pragma once

#include <string_view>

#include "checkpoint/base/requests.h"
#include "checkpoint/read/step_reader.h"
#include "common/status.h"

namespace keel::checkpoint {

// kConfig where the checkpoint is not what `request` asks for: of another model, without some of
// its contents or roles, or with a role that nobody asks for. `where` is its name for people, and
// `allow_missing` that of the setting.
Status CheckRequest(const LoadRequest& request, const StepReader& reader, std::string_view where,
                    std::string_view allow_missing);

bool HoldsRole(const Manifest& manifest, std::string_view role);

// True where weights that are saved as one whole Hugging Face model take the place of the sharded
// ones.
bool TakesHfWeights(const LoadRequest& request);

}  // namespace keel::checkpoint
