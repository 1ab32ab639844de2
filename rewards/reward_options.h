// The configuration's `reward` section: which verifier scores responses, and what becomes of those
// that it fails on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keel::rewards {

// reward.on_error. But for the last two, a batch of which no response has a score ends the run.
enum class OnRewardError {
  kZero,           // scores 0
  kExclude,        // takes no part
  kStop,           // ends the run, even if it is a single one
  kZeroAlways,     // as kZero, however many they are
  kExcludeAlways,  // as kExclude, however many they are
};
// The configuration's names, in the enum's order.
std::vector<std::string> OnRewardErrorNames();
// Of one of these names; throws Error(kConfig) for another.
OnRewardError OnRewardErrorOf(const std::string& name);

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

// Keel's own, but for overlong_buffer: verl takes a Python function where this takes a rule or a
// program.
struct RewardSection {
  std::string type = "auto";
  std::string method = "strict";
  double format_score = 0;
  std::optional<std::string> format_pattern;
  double format_weight = 1;
  std::vector<std::string> command;
  std::optional<std::string> url;
  std::optional<std::string> ca_file;
  int64_t num_workers = 2;
  int64_t batch_size = 16;
  double timeout_seconds = 10;
  int64_t max_retries = 2;
  std::string on_error = "zero";
  OverlongBufferSection overlong_buffer;
};

}  // namespace keel::rewards
