#include "rollout/sampling.h"

#include <fmt/format.h>

#include <cmath>

namespace keel::rollout {

std::vector<std::string> SamplingParams::Validate() const {
  std::vector<std::string> problems;
  const auto expect = [&](bool good, const char* key, const auto& found, const char* expected) {
    if (!good) problems.push_back(fmt::format("{} is {}, expected {}", key, found, expected));
  };
  expect(std::isfinite(temperature) && temperature >= 0, "temperature", temperature,
         "a number of at least 0");
  expect(top_k == -1 || top_k >= 1, "top_k", top_k, "-1 (all) or at least 1");
  expect(top_p > 0 && top_p <= 1, "top_p", top_p, "a number in (0, 1]");
  expect(min_p >= 0 && min_p <= 1, "min_p", min_p, "a number in [0, 1]");
  // Beyond these a logit times it leaves fp32.
  expect(repetition_penalty >= 1e-3 && repetition_penalty <= 1e3, "repetition_penalty",
         repetition_penalty, "a number from 0.001 to 1000");
  expect(max_tokens >= (wants_prompt() ? 0 : 1), "max_tokens", max_tokens,
         wants_prompt() ? "at least 0" : "at least 1");
  expect(likeliest >= 0 && likeliest <= kMostLikeliest, "likeliest", likeliest, "0 to 20");
  for (const std::string& text : stop) {
    if (text.empty()) problems.push_back("stop holds an empty string, which ends every text");
    if (text.find("\xEF\xBF\xBD") != std::string::npos)
      problems.push_back("stop holds U+FFFD, which stands in a text for a character's first bytes");
  }
  return problems;
}

}  // namespace keel::rollout
