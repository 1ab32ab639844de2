#include "common/programs/line_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "common/text.h"

extern char** environ;

namespace keel {

namespace {

// Room for a tool's state of 1 MiB, of which a byte may be escaped as six, and 2 MiB around it.
constexpr size_t kLongestLine = size_t{8} << 20;

int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

constexpr size_t kStackBytes = size_t{256} << 10;  // execvpe builds paths there

struct Program {
  char* const* argv;
  std::array<int, 3> streams;  // that become 0, 1 and 2
  pid_t parent = getpid();
  int error = 0;
};

// In the new process, which has this one's memory and a stack of its own until the program begins:
// system calls alone.
int Become(void* argument) {
  Program& program = *static_cast<Program*>(argument);
  // Where this process is killed nobody stops a program that hangs: it dies then, too.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != program.parent) _exit(127);  // too late
  setpgid(0, 0);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  for (int stream = 0; stream < 3; ++stream) {
    const int from = program.streams[static_cast<size_t>(stream)];
    if (from == stream ? fcntl(stream, F_SETFD, 0) < 0 : dup2(from, stream) < 0) {
      program.error = errno;
      _exit(127);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(program.argv[0], program.argv, environ);
  program.error = errno;
  _exit(127);
}

// 0, or the error. As posix_spawnp, which has no way to say that a program dies with its parent;
// a fork would copy the page tables of a model. No signal is handled in between.
int StartProgram(Program program, pid_t* process) {
  const auto stack = std::make_unique<std::array<std::byte, kStackBytes>>();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  *process =
      clone(&Become, stack->data() + stack->size(), CLONE_VM | CLONE_VFORK | SIGCHLD, &program);
  const int error = *process < 0 ? errno : program.error;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (*process >= 0 && error != 0) waitpid(*process, nullptr, 0);
  return error;
}

}  // namespace

LineProcess::LineProcess(std::string name, std::string limit, std::vector<std::string> command)
    : name_(std::move(name)),
      limit_(std::move(limit)),
      command_(std::move(command)),
      cancelled_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LineProcess::Cancel() {
  const uint64_t one = 1;
  if (cancelled_.valid()) (void)!::write(cancelled_.get(), &one, sizeof one);
}

Status LineProcess::Start() {
  if (EndedByItself()) Stop();
  if (process_ >= 0) return Status::Ok();
  const Status started = Spawn();
  if (started.ok()) {
    const Status greeted = Greet();
    // One that ends by itself would do so again.
    if (greeted.code() != StatusCode::kUnavailable || killed_) return greeted;
    return Status(StatusCode::kConfig, greeted.message());
  }
  if (started.code() == StatusCode::kExhausted) return started;
  return Status(StatusCode::kConfig,
                fmt::format("{}; expected a program that can be executed, by its path or by a name "
                            "in PATH: correct {}, make the file executable, or name what runs "
                            "it, as in [python3, verify.py]",
                            started.message(), name_));
}

Status LineProcess::Spawn() {
  killed_ = false;
  if (std::exchange(started_before_, true) && check_) check_();
  if (!cancelled_.valid())
    return Status(StatusCode::kExhausted, fmt::format("no descriptor left for {}", Describe()));
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
  std::vector<char*> argv;
  for (std::string& argument : command_) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int error = StartProgram({argv.data(), {in[1], out[1], errors_->write_end()}}, &process_);
  close(in[1]);
  close(out[1]);
  input_ = in[0];
  output_ = out[0];
  if (error != 0) {
    process_ = -1;
    Stop();
    return Status::FromFork(error, "start " + name_, command_[0]);
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

// Of one whose output has ended: a moment for the rest of it to end, too.
std::string LineProcess::HowItEnded() {
  constexpr int kLooks = 50;
  siginfo_t info{};
  for (int look = 0; look < kLooks && info.si_pid != process_; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) break;
  }
  killed_ = info.si_pid == process_ && info.si_code != CLD_EXITED;
  if (info.si_pid != process_) return "closed its output (its error output says why)";
  if (killed_)
    return fmt::format("was killed by signal {} ({})", info.si_status, strsignal(info.si_status));
  return fmt::format("ended with exit code {} (its error output says why)", info.si_status);
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
    const bool sends = sent < text.size();
    std::array<pollfd, 3> waits = {pollfd{output_, POLLIN, 0}, pollfd{cancelled_.get(), POLLIN, 0},
                                   pollfd{sends ? input_ : -1, POLLOUT, 0}};
    const int left = MillisecondsUntil(exchange.deadline);
    if (left == 0) {
      return Status(
          StatusCode::kDeadlineExceeded,
          fmt::format("{}: {} missing at its limit, {}; it was killed", Describe(),
                      exchange.missing(), exchange.limit.empty() ? limit_ : exchange.limit));
    }
    const int ready = poll(waits.data(), waits.size(), left);
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "poll", command_[0]);
    if (ready <= 0) continue;
    if (waits[1].revents != 0) {
      return Status(StatusCode::kCancelled,
                    fmt::format("{}: {} missing when nobody wanted them any more; it was killed",
                                Describe(), exchange.missing()));
    }
    if (sends && (waits[2].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
      const ssize_t wrote = send(input_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (wrote > 0) {
        sent += static_cast<size_t>(wrote);
      } else if (errno == EPIPE || errno == ECONNRESET) {
        sent = text.size();  // it has ended: below, behind what it said before
      } else if (errno != EAGAIN && errno != EINTR) {
        return Status::FromErrno(errno, "write to " + name_, command_[0]);
      }
    }
    if ((waits[0].revents & (POLLIN | POLLERR | POLLHUP)) == 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t got = recv(output_, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) {
      return Status(StatusCode::kUnavailable, fmt::format("{}: {} with {} missing", Describe(),
                                                          HowItEnded(), exchange.missing()));
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

}  // namespace keel
