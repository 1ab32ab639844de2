#include "common/log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "common/text.h"

namespace keel {

struct Logger::Sinks {
  std::mutex mutex;
  std::FILE* file = nullptr;
  bool colour = false;
};

namespace {

// An empty NO_COLOR is none (no-color.org).
bool WantsColour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace

Logger::Logger(const LogOptions& options) : options_(options), sinks_(std::make_unique<Sinks>()) {
  sinks_->colour = WantsColour();
  if (options_.file.empty()) return;
  sinks_->file = std::fopen(options_.file.c_str(), "ae");
  if (sinks_->file == nullptr) {
    Warning("the log file {} cannot be opened: {}", options_.file, std::strerror(errno));
  }
}

Logger::~Logger() {
  if (sinks_->file != nullptr) std::fclose(sinks_->file);
}

void Logger::Write(LogLevel level, std::string_view message) {
  if (level < options_.level) return;
  if (options_.rank > 0 && !options_.all_ranks && level < LogLevel::kWarning) return;
  static constexpr std::string_view kNames[] = {"debug", "info ", "warn ", "error"};
  static constexpr std::string_view kColours[] = {"\033[2m", "", "\033[33m", "\033[31m"};
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  std::string where;
  if (options_.rank >= 0) {
    where = step() >= 0 ? fmt::format("[rank {} step {}] ", options_.rank, step())
                        : fmt::format("[rank {}] ", options_.rank);
  }
  const auto index = static_cast<size_t>(level);
  const std::string line = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {} {}{}\n", seconds, ms,
                                       kNames[index], where, PrintableLines(message));
  const std::lock_guard lock(sinks_->mutex);
  if (sinks_->colour && !kColours[index].empty()) {
    const std::string_view text(line.data(), line.size() - 1);
    fmt::print(stderr, "{}{}\033[0m\n", kColours[index], text);
  } else {
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
  std::fflush(stderr);
  if (sinks_->file != nullptr) {
    std::fwrite(line.data(), 1, line.size(), sinks_->file);
    std::fflush(sinks_->file);
  }
}

}  // namespace keel
