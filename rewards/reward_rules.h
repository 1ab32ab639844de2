// Verifiers that are rules: what is right can be computed from the response and the ground truth.
//
// Each rule takes time linear in the response, of which the last MiB counts, and needs no timer.
// Torch-free.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "rewards/reward.h"
#include "rewards/reward_options.h"

namespace keel::rewards {

struct RuleOptions {
  RewardType type = RewardType::kAuto;  // a rule, or the one of the data_source
  bool flexible = false;                // gsm8k: the last number, instead of the one after "####"
  double format_score = 0;  // of a response with an answer of the right form that is wrong
  std::optional<std::string>
      format_pattern;        // PCRE2; the whole response must match, or it scores 0
  double format_weight = 1;  // factor of the score of one that matches
};

// exact: the response without outer white space is the ground truth.
// arithmetic: the last number of the response has the ground truth's value.
// countdown: the expression in the last <answer>...</answer>, else on the last line, uses each of
//   ground_truth.numbers once and gives ground_truth.target (with + - * / and parentheses; "= 24"
//   may follow).
// gsm8k: the number after the last "####" (or the last one of all); the ground truth may be a
// number
//   or the data set's whole answer.
// math: the last \boxed{...} is the same answer as the ground truth; see math_answer.h. Of DAPO's
// and AIME's sources what a line or a box says is the same text; see dapo_answer.h.
std::vector<RewardType> RewardRules();

// The rule of a data source: its own name, "openai/gsm8k", "lighteval/MATH", "countdown",
// "addition",
// ... Nothing when it is not known.
std::optional<RewardType> RuleOfDataSource(const std::string& data_source);

// Whether the rule, or with kAuto the one of the data source, can score by this ground truth:
// kInvalidData with what it expected. Ok of what is no rule.
Status CheckGroundTruth(RewardType rule, const std::string& data_source, const Json& ground_truth);

// Scores 1, format_score or 0 (math_dapo: 1 or -1), with extra "acc" (1 or 0), and "format" where
// there is a pattern. kConfig when the type or the pattern is wrong.
Result<std::unique_ptr<Verifier>> MakeRuleVerifier(const RuleOptions& options);

}  // namespace keel::rewards
