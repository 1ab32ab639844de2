#include "trainer/rl/sample_text.h"

#include <fmt/format.h>

#include <string_view>

#include "common/text.h"

namespace keel::trainer::rl {

namespace {

constexpr size_t kMostBytes = 4000;  // of a prompt, or of a response

std::string CodeBlock(const std::string& text) {
  const bool cut = text.size() > kMostBytes;
  return "    " + PrintableLines(text.substr(0, kMostBytes)) + (cut ? "..." : "");
}

// Of a text on the console: where a prompt asks, and where an answer ends.
constexpr size_t kHeadBytes = 300, kTailBytes = 200;

// In one line; its ends of lines and tabs as C writes them.
std::string Flat(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += c;
    }
  }
  return Printable(out, std::string::npos);
}

std::string Excerpt(std::string_view text) {
  if (text.size() <= kHeadBytes + kTailBytes) return Flat(text);
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  // No character is cut in two.
  size_t head = kHeadBytes, tail = text.size() - kTailBytes;
  for (int i = 0; i < 3 && continues(head); ++i) --head;
  for (int i = 0; i < 3 && continues(tail); ++i) ++tail;
  return fmt::format("{} [... {} bytes ...] {}", Flat(text.substr(0, head)), tail - head,
                     Flat(text.substr(tail)));
}

}  // namespace

std::string SampleLines(const Response& response, const std::string& prompt) {
  const std::string score = response.failed() ? "no reward: " + Printable(response.problem())
                                              : fmt::format("reward {:.3f}", response.score);
  return fmt::format("row {}  {}\n  prompt  {}\n  answer  {}", response.row, score, Excerpt(prompt),
                     Excerpt(response.text));
}

std::string SampleMarkdown(const Response& response, const std::string& prompt) {
  const std::string score = response.failed() ? "no score: " + Printable(response.problem())
                                              : fmt::format("score {}", response.score);
  return fmt::format("{}\n\nprompt\n\n{}\n\nresponse\n\n{}\n", score, CodeBlock(prompt),
                     CodeBlock(response.text));
}

}  // namespace keel::trainer::rl
