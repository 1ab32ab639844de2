#include "common/programs/line_relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include "common/guarded.h"
#include "common/text.h"

namespace keel {

namespace {

constexpr int kReadsAtOnce = 64;  // so that who never stops writing does not keep us

}  // namespace

Result<std::unique_ptr<LineRelay>> LineRelay::Start(std::string name) {
  std::unique_ptr<LineRelay> relay(new LineRelay(std::move(name)));
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return Status::FromErrno(errno, "make a channel for the error output of", relay->name_);
  relay->read_end_ = Descriptor(ends[0]);
  relay->write_end_ = Descriptor(ends[1]);
  relay->stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (!relay->stop_.valid() || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
    return Status::FromErrno(errno, "make a channel for the error output of", relay->name_);
  try {
    relay->thread_ = std::thread([self = relay.get()] { self->Run(); });
  } catch (const std::system_error& error) {
    return Status(
        StatusCode::kExhausted,
        fmt::format("no thread to read the error output of {}: {}", relay->name_, error.what()));
  }
  return relay;
}

LineRelay::~LineRelay() {
  const uint64_t one = 1;
  if (stop_.valid()) (void)!::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void LineRelay::Run() {
  for (bool more = true, last = false; more && !last;) {
    std::array<pollfd, 2> waits = {pollfd{read_end_.get(), POLLIN, 0},
                                   pollfd{stop_.get(), POLLIN, 0}};
    if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) break;
    last = waits[1].revents != 0;
    // Lines that there is no memory for are not shown.
    const Status shown = Guarded([&] {
      more = Drain();
      if ((last || !more) && !line_.empty()) Print();
      return Status::Ok();
    });
    if (!shown.ok()) line_.clear();
  }
}

bool LineRelay::Drain() {
  std::array<char, 65536> buffer;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = ::read(read_end_.get(), buffer.data(), buffer.size());
    if (got > 0) Take({buffer.data(), static_cast<size_t>(got)});
    if (got == 0) return false;
    if (got < 0 && errno != EINTR) return errno == EAGAIN;
  }
  return true;
}

void LineRelay::Take(std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    // A byte more than is shown: that there is more, Printable says.
    line_ += text.substr(0, std::min(end, kLongestLine + 1 - line_.size()));
    if (end == std::string_view::npos) return;
    Print();
    text.remove_prefix(end + 1);
  }
}

void LineRelay::Print() {
  const std::string line = std::exchange(line_, {});
  if (shown_ >= kMostBytes) return;
  std::string text = fmt::format("{}: {}\n", name_, Printable(line, kLongestLine));
  shown_ += text.size();
  if (shown_ >= kMostBytes)
    text += fmt::format("{}: no more of its error output is shown\n", name_);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);  // a line is whole: one call
}

}  // namespace keel
