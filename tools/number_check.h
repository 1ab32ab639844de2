// Checks of numbers on the command line, in words for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include <CLI/CLI.hpp>

namespace keel::tools {

// A number of at least `least`; the option's own type decides whether it may be a fraction.
inline CLI::Validator AtLeast(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == '\0' && value >= static_cast<double>(least))
          return std::string();
        return fmt::format("expected a number of at least {}, found '{}'", least, text);
      },
      fmt::format("AT LEAST {}", least));
}

inline CLI::Validator AtMost(int64_t most) {
  return CLI::Validator(
      [most](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == '\0' && value <= static_cast<double>(most))
          return std::string();
        return fmt::format("expected a number of at most {}, found '{}'", most, text);
      },
      fmt::format("AT MOST {}", most));
}

// Has every option of the command, and of those below it, that takes a number take decimal ones
// alone, and none that its type cannot hold: CLI11 reads 010 as 8, and what is beyond 64 bits as
// the largest number there is. Call when all options are there.
void CheckNumbers(CLI::App& app);

}  // namespace keel::tools
