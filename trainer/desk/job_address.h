// JobAddress: where the store of a job is, for a worker that joins it from outside. Torch-free.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "parallel/launch_env.h"

namespace keel::trainer::desk {

// As text, of what `env` says of the job: but for its secret, which is not sent.
std::string JobAddressOf(const parallel::LaunchEnv& env);
// `own`: of the process that joins; with the job's store, run and attempt in the place of its
// launcher's, and as rank `rank`.
Result<parallel::LaunchEnv> EnvOfJoined(const parallel::LaunchEnv& own, std::string_view address,
                                        int rank);
// Of --join: "host:port", "[v6]:port". kUsage for others.
Result<std::pair<std::string, int>> ParseDeskAddress(const std::string& text);

}  // namespace keel::trainer::desk
