#include "tools/launch/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/process/signal_handler.h"
#include "common/terminal.h"

extern char** environ;

namespace keel::tools {

namespace {

constexpr size_t kLongestLine = size_t{1} << 16;  // longer ones are passed on in pieces
constexpr size_t kLargestPipe = size_t{1} << 20;  // Linux allows no more without privileges

struct Pipe {
  Descriptor out, in;  // read from, written to
};

Result<Pipe> MakePipe(const std::string& command) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Status::FromErrno(errno, "pipe for", command);
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

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

  Child child;
  child.prefix_ = spec.prefix;
  child.show_ = spec.show;
  const std::array<std::FILE*, 2> targets = {stdout, stderr};
  const std::array<const char*, 2> names = {"/stdout.log", "/stderr.log"};
  std::array<Pipe, 2> pipes;
  for (size_t i = 0; i < 2; ++i) {
    Stream& stream = child.streams_[i];
    KEEL_ASSIGN_OR_RETURN(pipes[i], MakePipe(spec.command.front()));
    stream.target = targets[i];
    if (spec.log_directory.empty()) continue;
    stream.file_name = spec.log_directory + names[i];
    stream.file = Descriptor(Retry([&] {
      return open(stream.file_name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    }));
    if (!stream.file.valid()) return Status::FromErrno(errno, "open", stream.file_name);
  }
  KEEL_ASSIGN_OR_RETURN(Pipe failure, MakePipe(spec.command.front()));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::FromFork(errno, "fork", spec.command.front());
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the launcher died in between
    dup2(pipes[0].in.get(), STDOUT_FILENO);
    dup2(pipes[1].in.get(), STDERR_FILENO);
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
    [[maybe_unused]] const ssize_t written = write(failure.in.get(), &error, sizeof error);
    _exit(127);
  }
  setpgid(pid, pid);  // also here, so that no signal can miss the group
  for (Pipe& pipe : pipes) pipe.in = Descriptor();
  failure.in = Descriptor();
  int error = 0;
  // The end of the file when exec succeeded.
  const ssize_t got = Retry([&] { return read(failure.out.get(), &error, sizeof error); });
  if (got == static_cast<ssize_t>(sizeof error)) {
    waitpid(pid, nullptr, 0);
    return Status::FromErrno(error, "start", spec.command[0]);
  }
  child.pid_ = pid;
  for (size_t i = 0; i < 2; ++i) {
    fcntl(pipes[i].out.get(), F_SETFL, O_NONBLOCK);
    child.streams_[i].pipe = std::move(pipes[i].out);
  }
  return child;
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
  for (size_t total = 0; stream.pipe.valid() && total < kLargestPipe;) {
    const ssize_t size = read(stream.pipe.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) return Close(stream);
    total += static_cast<size_t>(size);
    Append(stream, {buffer.data(), static_cast<size_t>(size)});
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

// What finds no room is said the first time, and counted at the end.
void Child::Append(Stream& stream, std::string_view text) {
  if (!stream.file.valid()) return;
  while (!text.empty()) {
    const ssize_t size = Retry([&] { return write(stream.file.get(), text.data(), text.size()); });
    if (size <= 0) {
      if (stream.lost == 0) {
        WriteStderr(fmt::format("keel launch: {}output is lost: {}\n", prefix_,
                                Status::FromErrno(errno, "write", stream.file_name).message()));
      }
      stream.lost += std::ssize(text);
      return;
    }
    text.remove_prefix(static_cast<size_t>(size));
  }
}

void Child::Close(Stream& stream) {
  stream.pipe = Descriptor();
  if (!stream.line.empty()) Emit(stream);
  if (stream.lost > 0) {
    WriteStderr(fmt::format("keel launch: {}{} lacks {} bytes of its output\n", prefix_,
                            stream.file_name, stream.lost));
  }
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
