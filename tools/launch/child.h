// Child: one rank's process: its process group, its pipes, its files.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/posix_file.h"
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
  // An error when it, its pipes or its files cannot be.
  static Result<Child> Start(const ChildSpec& spec);
  Child(Child&& other) = default;
  Child& operator=(Child&&) = delete;
  ~Child() = default;  // closes pipes and files; the process goes its way

  pid_t pid() const { return pid_; }
  // The read ends to poll; -1 once at their end.
  int stdout_fd() const { return streams_[0].pipe.get(); }
  int stderr_fd() const { return streams_[1].pipe.get(); }
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
    Descriptor pipe;
    std::FILE* target = nullptr;
    Descriptor file;  // or none
    std::string file_name;
    int64_t lost = 0;  // bytes that the file has no room for
    std::string line;
  };
  Child() = default;
  void Drain(Stream& stream);
  void Close(Stream& stream);
  void Emit(Stream& stream);
  void Append(Stream& stream, std::string_view text);

  pid_t pid_ = -1;
  std::string prefix_;
  bool show_ = true;
  std::array<Stream, 2> streams_;
};

}  // namespace keel::tools
