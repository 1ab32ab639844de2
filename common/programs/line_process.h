// LineProcess: another program that is asked and answers by lines, over its standard input and
// output. Torch-free.
//
// It is started at Start() or the first exchange and stays; it runs in a process group of its own,
// which is killed as a whole when an exchange fails or passes its limit, at Stop(), and in the
// destructor. The next exchange starts it again, with its greeting. It is killed, too, when the
// thread that started it ends, in whatever way: one that hangs does not outlive a process that was
// killed. Its standard error is read by a thread, and printed on the caller's (LineRelay). One
// object belongs to one thread at a time, but for Cancel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/posix_file.h"
#include "common/programs/line_relay.h"
#include "common/status.h"

namespace keel {

// A question, and what is done with the answers.
struct LineExchange {
  std::string text;                                   // whole lines
  std::function<bool()> open;                         // whether an answer is still to come
  std::function<Status(std::string_view line)> take;  // of each line that is not empty
  std::function<std::string()> missing;               // "2 of 3 results", for messages
  std::chrono::steady_clock::time_point deadline;
  std::string limit = {};  // the key of this limit; "": that of the process
};

// What is said to a program that has just been started, before anything is asked of it, and its one
// line of answer.
struct LineGreeting {
  std::string text;  // a whole line; "": there is none
  std::chrono::milliseconds limit{0};
  std::string limit_name;
  std::function<Status(std::string_view line)> take;
};

class LineProcess {
 public:
  // `name` is what messages call it, "reward.command"; `limit` the key of its time limit.
  // `command`: program and arguments; the program is searched in PATH.
  LineProcess(std::string name, std::string limit, std::vector<std::string> command);
  ~LineProcess() { Stop(); }
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  // Before the first start.
  void SetGreeting(LineGreeting greeting) { greeting_ = std::move(greeting); }
  // Called before every start but the first, on the thread that starts it, which gets what it
  // throws: whether what is started is still what it was.
  void SetCheck(std::function<void()> check) { check_ = std::move(check); }
  // kConfig says what to do where the program cannot be started, or had ended by itself, or closed
  // its output, before it answered its greeting; kUnavailable where a signal killed it there;
  // kExhausted where this process has no room for one more, or for its descriptors; else what the
  // greeting met.
  Status Start();
  void Stop();
  // Ends when nothing is open. kDeadlineExceeded past the limit, kUnavailable where the program
  // ended, kInvalidData for a line without an end, else what `take` says; it is then stopped, since
  // nobody knows what it will say next.
  Status Exchange(const LineExchange& exchange);
  // Of any thread: a start or exchange under way, and every later one, ends with kCancelled.
  void Cancel();

  pid_t process() const { return process_; }  // -1 while none runs
  // "reward.command python3"
  std::string Describe() const { return name_ + " " + command_[0]; }

 private:
  Status Spawn();
  Status Greet();
  bool EndedByItself() const;
  Status Talk(const LineExchange& exchange);
  std::string HowItEnded();

  const std::string name_, limit_;
  std::vector<std::string> command_;
  LineGreeting greeting_;
  std::function<void()> check_;
  bool started_before_ = false;
  bool killed_ = false;  // the last one that ended amid an exchange was, by a signal
  pid_t process_ = -1;
  int input_ = -1;        // of the program, our end, non-blocking
  int output_ = -1;       // likewise
  Descriptor cancelled_;  // an eventfd: readable from Cancel on
  std::string received_;
  std::unique_ptr<LineRelay> errors_;
};

}  // namespace keel
