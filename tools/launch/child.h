// Child: one rank's process: its process group, its pipes, its files.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::tools {

struct ChildSpec {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;  // on top of the launcher's own
  std::string prefix;                              // of each line: "[rank0]: "
  std::string log_directory;                       // stdout.log and stderr.log; empty: none
  bool show = true;                                // on the launcher's own output
  bool holds_signals = false;                      // it begins with kJobSignals blocked
};

class Child {
 public:
  // Starts the process. It leads a process group of its own and is killed when the launcher dies.
  static Result<Child> Start(const ChildSpec& spec);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // closes pipes and files; the process goes its way

  pid_t pid() const { return pid_; }
  // The read ends to poll; -1 once at their end.
  int stdout_fd() const { return streams_[0].fd; }
  int stderr_fd() const { return streams_[1].fd; }
  // Reads what is there, a pipe's worth at most, and passes whole lines on; at the stream's end
  // also an unfinished one. A rank that never pauses thus does not keep the launcher from its other
  // work.
  void Drain();
  // Passes on an unfinished line, when nobody waits for the stream's end.
  void Flush();
  // To the whole process group.
  void Signal(int number) const;
  // True once the process has ended: then its group is killed, and `wait_status` set.
  bool Reap();

  bool ended = false;
  int wait_status = 0;  // as from waitpid, once ended

 private:
  struct Stream {
    int fd = -1;
    std::FILE* target = nullptr;
    std::FILE* file = nullptr;
    std::string line;
  };
  Child() = default;
  void Drain(Stream& stream);
  void Close(Stream& stream);
  void Emit(Stream& stream);

  pid_t pid_ = -1;
  std::string prefix_;
  bool show_ = true;
  std::array<Stream, 2> streams_;
};

}  // namespace keel::tools
