// The configuration's `reward` section: which verifier scores responses, and what becomes of those
// that it fails on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/enum_names.h"
#include "common/json.h"

namespace keel::rewards {

// reward.type: a rule (reward_rules.h), the rule that fits the row's data source, or a verifier
// that is not Keel's.
enum class RewardType {
  kAuto,
  kExact,
  kArithmetic,
  kCountdown,
  kGsm8k,
  kMath,
  kCommand,
  kHttp,
  kPython
};
constexpr auto NamesOf(RewardType) {
  using enum RewardType;
  return EnumNames<RewardType>({{kAuto, "auto"},
                                {kExact, "exact"},
                                {kArithmetic, "arithmetic"},
                                {kCountdown, "countdown"},
                                {kGsm8k, "gsm8k"},
                                {kMath, "math"},
                                {kCommand, "command"},
                                {kHttp, "http"},
                                {kPython, "python"}});
}
// Rules and Python functions read the text of a response; the others are given its ids where there
// is none.
constexpr bool ReadsText(RewardType type) {
  return type != RewardType::kCommand && type != RewardType::kHttp;
}

// What is not computed in this process, and may keep it waiting.
constexpr bool AsksOutside(RewardType type) {
  return type == RewardType::kCommand || type == RewardType::kHttp || type == RewardType::kPython;
}

// reward.method, of gsm8k
enum class RewardMethod {
  kStrict,    // the number after "####"
  kFlexible,  // the last one
};
constexpr auto NamesOf(RewardMethod) {
  using enum RewardMethod;
  return EnumNames<RewardMethod>({{kStrict, "strict"}, {kFlexible, "flexible"}});
}

// reward.on_error. But for the last two, a batch of which no response has a score ends the run.
enum class OnRewardError {
  kZero,           // scores 0
  kExclude,        // takes no part
  kStop,           // ends the run, even if it is a single one
  kZeroAlways,     // as kZero, however many they are
  kExcludeAlways,  // as kExclude, however many they are
};
constexpr auto NamesOf(OnRewardError) {
  using enum OnRewardError;
  return EnumNames<OnRewardError>({{kZero, "zero"},
                                   {kExclude, "exclude"},
                                   {kStop, "stop"},
                                   {kZeroAlways, "zero_always"},
                                   {kExcludeAlways, "exclude_always"}});
}

inline bool Excludes(OnRewardError policy) {
  return policy == OnRewardError::kExclude || policy == OnRewardError::kExcludeAlways;
}
inline bool GoesOnWithoutAnyScore(OnRewardError policy) {
  return policy == OnRewardError::kZeroAlways || policy == OnRewardError::kExcludeAlways;
}

struct OverlongBufferSection {
  bool enable = false;
  int64_t len = 0;
  double penalty_factor = 1.0;
};

// verl's, with its names: a function of a Python file.
struct CustomRewardFunctionSection {
  std::optional<std::string> path;
  std::string name = "compute_score";
  Json reward_kwargs = Json::object();  // what the function is given besides
};

// How one reward is computed. Keel's own, but for custom_reward_function.
struct VerifierSection {
  RewardType type = RewardType::kAuto;
  RewardMethod method = RewardMethod::kStrict;
  double format_score = 0;
  std::optional<std::string> format_pattern;
  double format_weight = 1;
  CustomRewardFunctionSection custom_reward_function;
  std::optional<std::string> python;
  double start_timeout_seconds = 60;
  std::vector<std::string> command;
  std::optional<std::string> url;
  std::optional<std::string> ca_file;
  std::optional<std::string> bearer_token_env;
  int64_t batch_size = 16;
  double timeout_seconds = 10;
  int64_t max_retries = 2;
};

struct RewardSection : VerifierSection {
  // Several rewards: {name, weight, keys of VerifierSection}; what one does not say is as above.
  // Read by RewardFunctions (reward_functions.h).
  std::vector<Json> functions;
  int64_t num_workers = 2;
  OnRewardError on_error = OnRewardError::kZero;
  OverlongBufferSection overlong_buffer;
};

// reward.type, where a file that is named and `auto` mean the file's function.
inline RewardType TypeOf(const VerifierSection& verifier) {
  const bool file =
      verifier.type == RewardType::kAuto && verifier.custom_reward_function.path.has_value();
  return file ? RewardType::kPython : verifier.type;
}

}  // namespace keel::rewards
