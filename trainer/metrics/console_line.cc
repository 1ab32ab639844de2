#include "trainer/metrics/console_line.h"

#include <algorithm>

#include "common/terminal.h"

namespace keel::trainer {

namespace {

// "loss   2.5000" -> "loss 2.5000"
std::string WithoutPadding(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c != ' ' || out.empty() || out.back() != ' ') out += c;
  return out;
}

}  // namespace

std::string WholeText(const ConsoleLine& line) {
  std::string text;
  for (const ConsoleField& field : line) {
    if (field.text.empty()) continue;
    if (!text.empty()) text += "  ";
    text += field.text;
  }
  return text;
}

std::string FittedText(const ConsoleLine& line, int columns) {
  ConsoleLine left = line;
  std::string text = WholeText(left);
  while (DisplayWidth(text) > columns) {
    auto least = left.end();
    for (auto field = left.begin(); field != left.end(); ++field)
      if (field->order > kKept && (least == left.end() || field->order >= least->order))
        least = field;
    if (least == left.end()) break;
    left.erase(least);
    text = WholeText(left);
  }
  return DisplayWidth(text) <= columns ? text : FitColumns(WithoutPadding(text), columns);
}

}  // namespace keel::trainer
