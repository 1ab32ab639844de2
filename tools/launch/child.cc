#include "tools/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/process/signal_handler.h"

extern char** environ;

namespace keel::tools {

namespace {

constexpr size_t kLongestLine = size_t{1} << 16;  // longer ones are passed on in pieces
constexpr size_t kLargestPipe = size_t{1} << 20;  // Linux allows no more without privileges

}  // namespace

Result<Child> Child::Start(const ChildSpec& spec) {
  // Everything that allocates happens before fork: between fork and exec only system calls.
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!spec.environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : spec.environment) variables.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : variables) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::vector<std::string> arguments = spec.command;
  std::vector<char*> argv;
  for (std::string& text : arguments) argv.push_back(text.data());
  argv.push_back(nullptr);

  std::array<std::array<int, 2>, 2> pipes{};
  std::array<int, 2> failure{};
  for (auto* ends : {&pipes[0], &pipes[1], &failure}) {
    if (pipe2(ends->data(), O_CLOEXEC) != 0)
      return Status::FromErrno(errno, "pipe for", spec.prefix);
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::FromErrno(errno, "fork for", spec.prefix);
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the launcher died in between
    dup2(pipes[0][1], STDOUT_FILENO);
    dup2(pipes[1][1], STDERR_FILENO);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
    sigset_t blocked;
    sigemptyset(&blocked);
    if (spec.holds_signals) {
      for (const int number : kJobSignals) sigaddset(&blocked, number);
    }
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    // What the launcher ignores, its children decide for themselves.
    for (const int ignored : {SIGPIPE, SIGXFSZ}) signal(ignored, SIG_DFL);
    execvpe(argv[0], argv.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(failure[1], &error, sizeof error);
    _exit(127);
  }
  setpgid(pid, pid);  // also here, so that no signal can miss the group
  close(pipes[0][1]);
  close(pipes[1][1]);
  close(failure[1]);
  int error = 0;
  const ssize_t got = read(failure[0], &error, sizeof error);  // end of file when exec succeeded
  close(failure[0]);
  if (got == static_cast<ssize_t>(sizeof error)) {
    waitpid(pid, nullptr, 0);
    close(pipes[0][0]);
    close(pipes[1][0]);
    return Status::FromErrno(error, "start", spec.command[0]);
  }

  Child child;
  child.pid_ = pid;
  child.prefix_ = spec.prefix;
  child.show_ = spec.show;
  const std::array<std::FILE*, 2> targets = {stdout, stderr};
  const std::array<const char*, 2> names = {"/stdout.log", "/stderr.log"};
  for (size_t i = 0; i < 2; ++i) {
    fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
    child.streams_[i].fd = pipes[i][0];
    child.streams_[i].target = targets[i];
    if (!spec.log_directory.empty())
      child.streams_[i].file = std::fopen((spec.log_directory + names[i]).c_str(), "ae");
  }
  return child;
}

Child::Child(Child&& other) noexcept
    : ended(other.ended),
      wait_status(other.wait_status),
      pid_(other.pid_),
      prefix_(std::move(other.prefix_)),
      show_(other.show_),
      streams_(std::move(other.streams_)) {
  for (Stream& stream : other.streams_) {
    stream.fd = -1;
    stream.file = nullptr;
  }
}

Child::~Child() {
  for (Stream& stream : streams_) {
    if (stream.fd >= 0) close(stream.fd);
    if (stream.file != nullptr) std::fclose(stream.file);
  }
}

void Child::Emit(Stream& stream) {
  if (show_) {
    const std::string text = prefix_ + stream.line + "\n";
    std::fwrite(text.data(), 1, text.size(), stream.target);
    std::fflush(stream.target);
  }
  stream.line.clear();
}

void Child::Drain(Stream& stream) {
  std::array<char, 16384> buffer;
  for (size_t total = 0; stream.fd >= 0 && total < kLargestPipe;) {
    const ssize_t size = read(stream.fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) return Close(stream);
    total += static_cast<size_t>(size);
    if (stream.file != nullptr) {
      std::fwrite(buffer.data(), 1, static_cast<size_t>(size), stream.file);
      std::fflush(stream.file);
    }
    for (ssize_t i = 0; i < size; ++i) {
      if (buffer[static_cast<size_t>(i)] == '\n') {
        Emit(stream);
      } else {
        stream.line += buffer[static_cast<size_t>(i)];
        if (stream.line.size() >= kLongestLine) Emit(stream);
      }
    }
  }
}

void Child::Close(Stream& stream) {
  close(stream.fd);
  stream.fd = -1;
  if (!stream.line.empty()) Emit(stream);
}

void Child::Drain() {
  for (Stream& stream : streams_) Drain(stream);
}

void Child::Flush() {
  for (Stream& stream : streams_) {
    if (!stream.line.empty()) Emit(stream);
  }
}

void Child::Signal(int number) const { kill(-pid_, number); }

bool Child::Reap() {
  siginfo_t info{};
  // Not reaped yet, so that the number of its group cannot have passed to another.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return false;
  }
  Signal(SIGKILL);
  ended = waitpid(pid_, &wait_status, 0) == pid_;
  return ended;
}

}  // namespace keel::tools
