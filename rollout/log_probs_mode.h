// LogProbsMode: what the log-probability that is kept of a chosen token means, and the names of
// actor_rollout_ref.rollout.logprobs_mode. Torch-free.
#pragma once

#include "common/enum_names.h"

namespace keel::rollout {

enum class LogProbsMode {
  // Under softmax(logits / temperature), without penalty and filters: what the trainer computes,
  // whatever the token was drawn from. At temperature 0: under softmax(logits).
  kPolicy,
  // Under softmax(logits): the trainer's at temperature 1.
  kRaw,
  // Under the distribution it was drawn from: after penalty, temperature and filters, renormalised.
  // At temperature 0: after the penalty alone.
  kProcessed,
};

// The last two are vLLM's.
constexpr auto NamesOf(LogProbsMode) {
  using enum LogProbsMode;
  return EnumNames<LogProbsMode>(
      {{kPolicy, "policy_logprobs"}, {kRaw, "raw_logprobs"}, {kProcessed, "processed_logprobs"}});
}

}  // namespace keel::rollout
