// LineRelay: what a program writes to its standard error, printed on ours a line at a time.
//
// The program's text is of unknown origin: a line is made printable, begins with the program's
// name, and is cut; of a program that does not stop no more than kMostBytes are shown. Reads on a
// thread of its own, so that the program is never held up, until it is destroyed. Torch-free.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "common/files/posix_file.h"
#include "common/status.h"

namespace keel {

class LineRelay {
 public:
  static constexpr size_t kLongestLine = 1000;
  static constexpr size_t kMostBytes = size_t{1} << 20;

  // kExhausted when there is no descriptor or thread left.
  static Result<std::unique_ptr<LineRelay>> Start(std::string name);
  // Prints what has been written so far, whoever still holds the other end.
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  // The program's end, to be given to it; ours is closed on exec.
  int write_end() const { return write_end_.get(); }

 private:
  explicit LineRelay(std::string name) : name_(std::move(name)) {}
  void Run();
  // Reads what is there; false at the end of the text.
  bool Drain();
  void Take(std::string_view text);
  void Print();

  const std::string name_;
  Descriptor read_end_, write_end_, stop_;
  std::string line_;  // as far as it has come, and as much of it as is shown
  size_t shown_ = 0;  // bytes, names included
  std::thread thread_;
};

}  // namespace keel
