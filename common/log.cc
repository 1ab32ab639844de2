#include "common/log.h"

#include <fmt/chrono.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "common/terminal.h"
#include "common/text.h"

namespace keel {

// spdlog's sinks write, colour and rotate; what a line says, and what it must not, is ours.
struct Logger::Sinks {
  std::mutex mutex;
  std::unique_ptr<spdlog::sinks::ansicolor_stderr_sink_st> console;
  std::unique_ptr<spdlog::sinks::rotating_file_sink_st> file;
  bool file_failed = false;  // the last line for it was lost
};

namespace {

struct LevelLook {
  std::string_view name;
  spdlog::level::level_enum level;
  const char* colour;
};
constexpr std::array<LevelLook, 4> kLooks = {{{"debug", spdlog::level::debug, "\033[2m"},
                                              {"info ", spdlog::level::info, ""},
                                              {"warn ", spdlog::level::warn, "\033[33m"},
                                              {"error", spdlog::level::err, "\033[31m"}}};

// An empty NO_COLOR is none (no-color.org).
bool WantsColour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace

Logger::Logger(const LogOptions& options) : options_(options), sinks_(std::make_unique<Sinks>()) {
  sinks_->console = std::make_unique<spdlog::sinks::ansicolor_stderr_sink_st>(
      WantsColour() ? spdlog::color_mode::always : spdlog::color_mode::never);
  sinks_->console->set_pattern("%^%v%$");
  for (const LevelLook& look : kLooks) sinks_->console->set_color(look.level, look.colour);
  if (options_.file.empty()) return;
  try {
    sinks_->file = std::make_unique<spdlog::sinks::rotating_file_sink_st>(
        options_.file, static_cast<size_t>(options_.file_bytes),
        static_cast<size_t>(options_.older_files));
    sinks_->file->set_pattern("%v");
  } catch (const std::exception& error) {
    Warning("the log file {} cannot be opened: {}", options_.file, error.what());
  }
}

Logger::~Logger() = default;

std::string Logger::LineOf(LogLevel level, std::string_view message) const {
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  std::string where;
  if (options_.rank >= 0) {
    where = step() >= 0 ? fmt::format("[rank {} step {}] ", options_.rank, step())
                        : fmt::format("[rank {}] ", options_.rank);
  }
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {} {}{}", seconds, ms,
                     kLooks[static_cast<size_t>(level)].name, where, PrintableLines(message));
}

void Logger::Write(LogLevel level, std::string_view message) {
  if (level < options_.level) return;
  if (options_.rank > 0 && !options_.all_ranks && level < LogLevel::kWarning) return;
  const std::string line = LineOf(level, message);
  Emit(level, line, line);
}

void Logger::InfoFitted(std::string_view message,
                        const std::function<std::string(int columns)>& fit) {
  if (options_.level > LogLevel::kInfo || (options_.rank > 0 && !options_.all_ranks)) return;
  const int own = TerminalColumns(STDERR_FILENO);
  // The last column stays free: some terminals go to the next line there.
  const int columns = (own > 0 ? own : options_.columns) - 1;
  const std::string whole = LineOf(LogLevel::kInfo, message);
  Emit(LogLevel::kInfo, columns > 0 ? PrintableLines(fit(columns)) : whole, whole);
}

void Logger::Emit(LogLevel level, const std::string& shown, const std::string& kept) {
  const spdlog::level::level_enum look = kLooks[static_cast<size_t>(level)].level;
  std::string lost;
  {
    const std::lock_guard lock(sinks_->mutex);
    sinks_->console->log(spdlog::details::log_msg("", look, shown));
    sinks_->console->flush();
    if (sinks_->file == nullptr) return;
    try {
      sinks_->file->log(spdlog::details::log_msg("", look, kept));
      sinks_->file->flush();
      sinks_->file_failed = false;
    } catch (const std::exception& error) {
      // A log is no reason to end a run. Said once, until a line can be written again.
      if (!sinks_->file_failed) lost = error.what();
      sinks_->file_failed = true;
    }
  }
  if (!lost.empty()) Warning("lines are missing in the log file {}: {}", options_.file, lost);
}

}  // namespace keel
