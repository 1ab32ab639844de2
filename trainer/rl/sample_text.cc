#include "trainer/rl/sample_text.h"

#include <fmt/format.h>

#include "common/text.h"

namespace keel::trainer::rl {

namespace {

constexpr size_t kMostBytes = 4000;  // of a prompt, or of a response

std::string CodeBlock(const std::string& text) {
  const bool cut = text.size() > kMostBytes;
  return "    " + PrintableLines(text.substr(0, kMostBytes)) + (cut ? "..." : "");
}

}  // namespace

std::string SampleMarkdown(const Response& response, const std::string& prompt) {
  const std::string score = response.failed() ? "no score: " + Printable(response.problem())
                                              : fmt::format("score {}", response.score);
  return fmt::format("{}\n\nprompt\n\n{}\n\nresponse\n\n{}\n", score, CodeBlock(prompt),
                     CodeBlock(response.text));
}

}  // namespace keel::trainer::rl
