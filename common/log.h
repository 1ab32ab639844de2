// Logger: an event per line, with time, level, rank and step, flushed.
//
// Passed by reference; no global. Lines look like
//   2026-11-21T07:00:00.123Z info  [rank 0 step 12] saved global_step_12 in 0.41 s
// A message's further lines are indented, and what is not printable in it is escaped, so that a
// line that starts with a time is an event. Colour only on a terminal without NO_COLOR.
// Thread-safe.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace keel {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  int rank = -1;           // -1: not part of a job, no rank in the line
  bool all_ranks = false;  // false: ranks > 0 print warnings and errors only
  // Of the terminal at the other end of standard error, where that is not one itself, as below a
  // launcher; 0: there is none, or it is not known.
  int columns = 0;
  // Also to this file (append) when not empty; a warning if, or once, it cannot be written. At so
  // many bytes it becomes `<name>.1.<extension>`, and so on up to `older_files`.
  std::string file;
  int64_t file_bytes = int64_t{64} << 20;
  int older_files = 4;
};

class Logger {
 public:
  explicit Logger(const LogOptions& options);
  ~Logger();

  // The step shown from now on; -1 for none.
  void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  int rank() const { return options_.rank; }

  template <typename... Args>
  void Debug(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Info(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Warning(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }
  void Write(LogLevel level, std::string_view message);
  // An Info that fits on a line of the terminal: there it is what `fit` makes of so many columns,
  // which says by itself where it is from; elsewhere, and in the file, it is `message`.
  void InfoFitted(std::string_view message, const std::function<std::string(int columns)>& fit);

 private:
  void Emit(LogLevel level, const std::string& shown, const std::string& kept);
  std::string LineOf(LogLevel level, std::string_view message) const;
  struct Sinks;
  LogOptions options_;
  std::atomic<int64_t> step_{-1};
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace keel
