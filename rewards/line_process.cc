#include "rewards/line_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/text.h"

extern char** environ;

namespace keel::rewards {

namespace {

constexpr size_t kLongestLine = size_t{1} << 20;

int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace

Status LineProcess::Start() {
  if (EndedByItself()) Stop();
  if (process_ >= 0) return Status::Ok();
  const Status started = Spawn();
  if (started.ok()) return Greet();
  return Status(StatusCode::kConfig,
                fmt::format("{}; expected a program that can be executed, by its path or by a name "
                            "in PATH: correct {}, make the file executable, or name what runs "
                            "it, as in [python3, verify.py]",
                            started.message(), name_));
}

Status LineProcess::Spawn() {
  KEEL_ASSIGN_OR_RETURN(errors_,
                        LineRelay::Start(fmt::format("{} {}", name_, Printable(command_[0]))));
  // Sockets instead of pipes: a write to a program that is gone is an error here, not a signal.
  std::array<int, 2> in{}, out{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0)
    return Status::FromErrno(errno, "make a channel for", command_[0]);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out.data()) != 0) {
    const int error = errno;
    close(in[0]);
    close(in[1]);
    return Status::FromErrno(error, "make a channel for", command_[0]);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors_->write_end(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv;
  for (std::string& argument : command_) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int error = posix_spawnp(&process_, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(in[1]);
  close(out[1]);
  input_ = in[0];
  output_ = out[0];
  if (error != 0) {
    process_ = -1;
    Stop();
    return Status::FromErrno(error, "start " + name_, command_[0]);
  }
  fcntl(input_, F_SETFL, O_NONBLOCK);
  fcntl(output_, F_SETFL, O_NONBLOCK);
  return Status::Ok();
}

Status LineProcess::Greet() {
  if (greeting_.text.empty()) return Status::Ok();
  bool answered = false;
  LineExchange exchange;
  exchange.text = greeting_.text;
  exchange.deadline = std::chrono::steady_clock::now() + greeting_.limit;
  exchange.limit = greeting_.limit_name;
  exchange.open = [&] { return !answered; };
  exchange.missing = [] { return std::string("the answers to its greeting"); };
  exchange.take = [&](std::string_view line) {
    answered = true;
    return greeting_.take(line);
  };
  const Status greeted = Talk(exchange);
  if (!greeted.ok()) Stop();
  return greeted;
}

void LineProcess::Stop() {
  if (input_ >= 0) close(input_);
  if (output_ >= 0) close(output_);
  input_ = output_ = -1;
  received_.clear();
  if (process_ >= 0) {
    kill(-process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
  }
  errors_.reset();
}

bool LineProcess::EndedByItself() const {
  if (process_ < 0) return false;
  siginfo_t info{};
  // Left to be reaped: its number stays taken until Stop has killed what it left behind.
  return waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == process_;
}

Status LineProcess::Exchange(const LineExchange& exchange) {
  // One that ended while nothing was asked of it has failed at nothing.
  if (EndedByItself()) Stop();
  if (process_ < 0) {
    KEEL_RETURN_IF_ERROR(Spawn());
    KEEL_RETURN_IF_ERROR(Greet());
  }
  const Status done = Talk(exchange);
  if (!done.ok()) Stop();
  return done;
}

Status LineProcess::Talk(const LineExchange& exchange) {
  const std::string& text = exchange.text;
  size_t sent = 0;
  // Both directions at once: a program may answer before it has read all.
  while (exchange.open()) {
    std::array<pollfd, 2> waits = {pollfd{output_, POLLIN, 0}, pollfd{input_, POLLOUT, 0}};
    const int left = MillisecondsUntil(exchange.deadline);
    if (left == 0) {
      return Status(
          StatusCode::kDeadlineExceeded,
          fmt::format("{}: {} are missing at its limit, {}; it was killed", Describe(),
                      exchange.missing(), exchange.limit.empty() ? limit_ : exchange.limit));
    }
    const int ready = poll(waits.data(), sent < text.size() ? 2 : 1, left);
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "poll", command_[0]);
    if (ready <= 0) continue;
    if (sent < text.size() && (waits[1].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
      const ssize_t wrote = send(input_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (wrote > 0) {
        sent += static_cast<size_t>(wrote);
      } else if (errno != EAGAIN && errno != EINTR) {
        return Status::FromErrno(errno, "write to " + name_, command_[0]);
      }
    }
    if ((waits[0].revents & (POLLIN | POLLERR | POLLHUP)) == 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t got = recv(output_, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("{}: ended with {} missing; its error output says why", Describe(),
                                exchange.missing()));
    }
    received_.append(buffer.data(), static_cast<size_t>(got));
    size_t end = 0;
    while ((end = received_.find('\n')) != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      KEEL_RETURN_IF_ERROR(exchange.take(line));
    }
    if (received_.size() > kLongestLine) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: a line of more than {} bytes", Describe(), kLongestLine));
    }
  }
  return Status::Ok();
}

}  // namespace keel::rewards
