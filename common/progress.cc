#include "common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "common/terminal.h"

namespace keel {

namespace {

constexpr int64_t kPeriod_ns = 250'000'000;
// What is over sooner is not worth a line that flashes up.
constexpr int64_t kFirst_ns = 500'000'000;
constexpr int kWidestBar = 30, kNarrowestBar = 8;

std::string TimeText(double seconds) {
  const auto s = static_cast<int64_t>(std::min(seconds, 359'999.0));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string BarText(double share, int columns) {
  constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(share * 8 * columns);
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[static_cast<size_t>(eighths % 8)];
  bar.append(static_cast<size_t>(columns - eighths / 8 - (eighths % 8 > 0 ? 1 : 0)), ' ');
  return "|" + bar + "|";
}

}  // namespace

Progress::Progress(Options options)
    : options_(std::move(options)),
      shown_(options_.fd >= 0 && TerminalColumns(options_.fd) > 0),
      total_(options_.total),
      begin_(options_.clock->Monotonic()),
      next_ns_(begin_.count() + kFirst_ns) {}

Progress::~Progress() { Done(); }

std::string Progress::Amount(double value) const {
  if (options_.unit == Unit::kCount) {
    constexpr std::array<std::string_view, 4> kNames = {"", "k", "M", "G"};
    size_t name = 0;
    if (value >= 100'000) {
      while (value >= 1000 && name + 1 < kNames.size()) {
        value /= 1000;
        ++name;
      }
    }
    const bool whole = name == 0 && value >= 100;
    if (whole || (name == 0 && value == std::floor(value))) return fmt::format("{:.0f}", value);
    return fmt::format("{:.1f}{}", value, kNames[name]);
  }
  constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t name = 0;
  while (value >= 1024 && name + 1 < kNames.size()) {
    value /= 1024;
    ++name;
  }
  return name == 0 ? fmt::format("{:.0f} B", value) : fmt::format("{:.1f} {}", value, kNames[name]);
}

std::string Progress::Line(int columns) const {
  const auto done = static_cast<double>(done_.load());
  const auto total = static_cast<double>(total_.load());
  const double elapsed = Seconds(options_.clock->Monotonic() - begin_);
  const double rate = elapsed > 0 ? done / elapsed : 0;
  const std::string of = options_.of.empty() ? "" : " " + options_.of;
  // More than the total: that was a guess, and nothing can be said of what is to come.
  const bool known = total > 0 && done <= total;
  std::string amounts = known ? Amount(done) + "/" + Amount(total) : Amount(done);
  amounts += of;
  std::string tail = "  " + amounts;
  if (rate > 0) tail += fmt::format("  {}/s", Amount(rate));
  tail +=
      "  " + (known && rate > 0 ? TimeText((total - done) / rate) + " left" : TimeText(elapsed));
  std::string head = options_.what;
  if (known) head += fmt::format("  {:3.0f} % ", std::floor(100 * done / total));
  const int room = columns - DisplayWidth(head) - DisplayWidth(tail) - 2;
  const int bar = std::min(room, kWidestBar);
  return FitColumns(head + (known && bar >= kNarrowestBar ? BarText(done / total, bar) : "") + tail,
                    columns);
}

void Progress::Draw(int64_t /*done*/) {
  if (!shown_) return;
  const int64_t now = options_.clock->Monotonic().count();
  int64_t next = next_ns_.load();
  if (now < next || !next_ns_.compare_exchange_strong(next, now + kPeriod_ns)) return;
  const std::lock_guard lock(mutex_);
  if (over_) return;
  // The last column stays free: some terminals go to the next line there.
  const int columns = TerminalColumns(options_.fd) - 1;
  if (columns <= 0) return;
  // One write, so that no half of it is ever seen; what the line before had more is erased.
  const std::string text = "\r" + Line(columns) + "\x1b[K";
  drawn_ = true;
  [[maybe_unused]] const ssize_t written = ::write(options_.fd, text.data(), text.size());
}

void Progress::Hide() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(drawn_, false)) return;
  constexpr std::string_view kErase = "\r\x1b[K";
  [[maybe_unused]] const ssize_t written = ::write(options_.fd, kErase.data(), kErase.size());
}

void Progress::Done() {
  Hide();
  const std::lock_guard lock(mutex_);
  over_ = true;
}

}  // namespace keel
