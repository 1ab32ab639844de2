#include "tools/number_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <system_error>

#include "common/text.h"

namespace keel::tools {

namespace {

template <typename Number>
bool Reads(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename Integer>
std::string ProblemOfInteger(const std::string& text) {
  std::string_view digits = text;
  if (std::numeric_limits<Integer>::is_signed && digits.starts_with('-')) digits.remove_prefix(1);
  const bool plain = !digits.empty() && std::all_of(digits.begin(), digits.end(), IsDigit) &&
                     (digits.size() == 1 || digits.front() != '0');
  Integer value = 0;
  if (plain && Reads(text, &value)) return "";
  return fmt::format("expected a whole number from {} to {}, without zeros before it, found '{}'",
                     std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max(),
                     Printable(text));
}

std::string ProblemOfFraction(const std::string& text) {
  double value = 0;
  if (Reads(text, &value) && std::isfinite(value)) return "";
  return fmt::format("expected a number, such as 0.5 or 1e-3, found '{}'", Printable(text));
}

}  // namespace

void CheckNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    if (option->get_type_size() == 0) continue;  // a switch
    // What checks are there stand behind the type: "INT:AT LEAST 1".
    const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
    // Checks without a name are not in the help.
    if (type == "INT") option->check(CLI::Validator(ProblemOfInteger<int64_t>, ""));
    if (type == "UINT") option->check(CLI::Validator(ProblemOfInteger<uint64_t>, ""));
    if (type == "FLOAT") option->check(CLI::Validator(ProblemOfFraction, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) CheckNumbers(*command);
}

}  // namespace keel::tools
