#include "tools/watch/watch_screen.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "common/files/posix_file.h"
#include "common/process/signal_handler.h"
#include "common/terminal.h"

namespace keel::tools {

namespace {

std::atomic<bool> stop{false};
// The size is another, or the process has been stopped and goes on.
std::atomic<bool> changed{false};

extern "C" void OnWatchStop(int) { stop = true; }
extern "C" void OnWatchChange(int) { changed = true; }

// Another screen, so that what was there before is there again at the end; no cursor.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J";
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
// What is between them is shown at once, by terminals that know them.
constexpr std::string_view kBegin = "\x1b[?2026h\x1b[H", kEnd = "\x1b[J\x1b[?2026l";

Status Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = Retry([&] { return ::write(STDOUT_FILENO, text.data(), text.size()); });
    if (written <= 0) return Status::FromErrno(errno, "write", "the terminal");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

}  // namespace

const std::atomic<bool>& WatchStop() {
  static const bool taken = [] {
    for (const int number : kEndSignals) ThrowIfError(HandleSignal(number, OnWatchStop));
    return true;
  }();
  (void)taken;
  return stop;
}

WatchScreen::WatchScreen() {
  (void)WatchStop();
  for (const int number : {SIGWINCH, SIGCONT}) ThrowIfError(HandleSignal(number, OnWatchChange));
  if (::tcgetattr(STDIN_FILENO, &before_) != 0)
    throw Error(Status::FromErrno(errno, "read the modes of", "the terminal"));
  TakeModes();
}

void WatchScreen::TakeModes() {
  termios modes = before_;
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // keys as they come; signals stay
  modes.c_cc[VMIN] = 0;
  modes.c_cc[VTIME] = 0;
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &modes);
  (void)Write(kEnter);
  drawn_.clear();
}

WatchScreen::~WatchScreen() {
  (void)Write(kLeave);
  (void)::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

int WatchScreen::columns() const { return std::max(1, TerminalColumns(STDOUT_FILENO)); }
int WatchScreen::rows() const { return std::max(1, TerminalRows(STDOUT_FILENO)); }

Status WatchScreen::Draw(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\r\n" : "") + lines[i] + "\x1b[K";
  if (text == drawn_) return Status::Ok();
  drawn_ = text;
  return Write(fmt::format("{}{}{}", kBegin, text, kEnd));
}

bool WatchScreen::Wait(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!stop) {
    if (changed.exchange(false)) {
      TakeModes();  // whoever had the terminal meanwhile may have changed them
      return true;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    // In slices: the call that a signal interrupts is made again by nobody but this loop.
    if (::poll(&input, 1, static_cast<int>(std::min<int64_t>(left.count(), 200))) <= 0) continue;
    char key = 0;
    const ssize_t got = ::read(STDIN_FILENO, &key, 1);
    if (got < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (got == 0 || (input.revents & POLLHUP) != 0) return false;
    if (got == 1 && (key == 'q' || key == 'Q' || key == '\x03')) return false;
  }
  return false;
}

}  // namespace keel::tools
