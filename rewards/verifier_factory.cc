#include "rewards/verifier_factory.h"

#include <algorithm>
#include <utility>

#include "rewards/command_verifier.h"
#include "rewards/http_verifier.h"
#include "rewards/reward_check.h"
#include "rewards/reward_rules.h"

namespace keel::rewards {

namespace {

RequestOptions RequestsOf(const RewardSection& reward) {
  RequestOptions options;
  options.batch_size = static_cast<size_t>(reward.batch_size);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(reward.timeout_seconds * 1000));
  options.max_retries = static_cast<int>(reward.max_retries);
  return options;
}

}  // namespace

Result<RewardPool::Factory> MakeVerifierFactory(const RewardSection& reward) {
  KEEL_RETURN_IF_ERROR(CheckReward(reward));
  if (reward.type == RewardType::kCommand) {
    return RewardPool::Factory([command = reward.command, options = RequestsOf(reward)] {
      return std::make_unique<CommandVerifier>(command, options);
    });
  }
  if (reward.type == RewardType::kHttp) {
    HttpOptions http{*reward.url, reward.ca_file.value_or("")};
    KEEL_RETURN_IF_ERROR(CheckHttpUrl(http.url));
    return RewardPool::Factory([http = std::move(http), options = RequestsOf(reward)] {
      return std::make_unique<HttpVerifier>(http, options);
    });
  }
  return RewardPool::Factory(
      [options = RuleOptionsOf(reward)] { return ValueOrThrow(MakeRuleVerifier(options)); });
}

std::chrono::milliseconds CollectLimit(const RewardSection& reward, int64_t samples) {
  // A worker may take one sample at a time when they trickle in.
  const int64_t rounds = (samples + reward.num_workers - 1) / reward.num_workers + 1;
  const double each = reward.timeout_seconds * static_cast<double>(1 + reward.max_retries);
  return std::chrono::milliseconds(
      static_cast<int64_t>(1000 * each * static_cast<double>(std::max<int64_t>(1, rounds))));
}

}  // namespace keel::rewards
