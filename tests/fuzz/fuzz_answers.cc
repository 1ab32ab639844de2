// Text that a policy in training writes: answers, expressions, whole responses.
#include "common/json.h"
#include "rewards/dapo_answer.h"
#include "rewards/latex_text.h"
#include "rewards/math_answer.h"
#include "rewards/rational.h"
#include "rewards/reward_rules.h"
#include "tests/fuzz/targets.h"

namespace keel::fuzz {

// The bytes are a response and, after a zero byte, a ground truth.
void FuzzAnswers(std::string_view bytes) {
  const std::string_view response = bytes.substr(0, bytes.find('\0'));
  const std::string_view truth =
      response.size() < bytes.size() ? bytes.substr(response.size() + 1) : "24";

  const bool same = rewards::SameAnswer(response, truth);
  KEEL_REQUIRE(rewards::SameAnswer(truth, response) == same);
  if (const auto value = rewards::Evaluate(response)) {
    KEEL_REQUIRE(value->Minus(*value) == rewards::Rational());
    KEEL_REQUIRE(rewards::SameAnswer(response, response));
  }
  if (const auto boxed = rewards::LastBoxed(response))
    KEEL_REQUIRE(response.find(*boxed) != std::string_view::npos);
  if (const auto boxed = rewards::DapoBoxed(response))
    KEEL_REQUIRE(response.find(*boxed) != std::string_view::npos);
  if (const auto number = rewards::LastNumber(response))
    KEEL_REQUIRE(number->find_first_not_of("-.0123456789") == std::string::npos);
  if (const auto plain = rewards::PlainFromLatex(response))
    KEEL_REQUIRE(plain->size() <= 16 * (response.size() + 1));

  rewards::RewardSample sample;
  sample.response = std::string(response);
  for (const rewards::RewardType rule : rewards::RewardRules()) {
    rewards::RuleOptions options;
    options.type = rule;
    options.format_score = 0.25;
    sample.ground_truth = rule == rewards::RewardType::kCountdown
                              ? Json({{"target", 24}, {"numbers", {4, 6, 1}}})
                              : Json(std::string(truth));
    const auto result = ValueOrThrow(rewards::MakeRuleVerifier(options))->Verify({&sample, 1})[0];
    KEEL_REQUIRE(result.score == 0 || result.score == 0.25 || result.score == 1);
    KEEL_REQUIRE(result.ok() || result.score == 0);
    KEEL_REQUIRE(!result.ok() || result.extra.at("acc") == (result.score == 1 ? 1 : 0));
  }
}

std::vector<std::string> AnswersSeeds() {
  const auto pair = [](std::string response, const std::string& truth) {
    return response + '\0' + truth;
  };
  return {pair("so $\\boxed{\\dfrac{1}{2}}$.", "0.5"),
          pair("\\left( 1\\frac{1}{2}, \\sqrt[3]{2} \\right)", "(1.5,\\sqrt[3]2)"),
          pair("1,234.50\\text{ cm}^2", "1234.5 cm^2"),
          pair("50\\%", "0.5"),
          pair("\\{1, 2,\\pi\\}", "\\{\\pi,2,1\\}"),
          pair("x = -3 \\times 10^{-5}", "-0.00003"),
          pair("2+2 = <<2+2=4>>4\n#### 1,004", "#### 1004"),
          "<answer>(6 - 1 + 1) * 4</answer>",
          "6*4*1 = 24"};
}

}  // namespace keel::fuzz
