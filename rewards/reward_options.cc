#include "rewards/reward_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/status.h"

namespace keel::rewards {

std::vector<std::string> OnRewardErrorNames() {
  return {"zero", "exclude", "stop", "zero_always", "exclude_always"};
}

OnRewardError OnRewardErrorOf(const std::string& name) {
  const std::vector<std::string> names = OnRewardErrorNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw Error(StatusCode::kConfig, fmt::format("reward.on_error is '{}', expected one of {}",
                                                 name, fmt::join(names, ", ")));
  }
  return static_cast<OnRewardError>(found - names.begin());
}

}  // namespace keel::rewards
