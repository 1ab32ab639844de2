// AnswerStream: an answer's text as it grows, in parts that stay true.
//
// The end of a text may yet change: bytes of a character that is not whole, and what may become a
// stop string, at which the answer ends before it. Both are held back. Torch-free.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace keel::tools {

class AnswerStream {
 public:
  explicit AnswerStream(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // What can be shown beyond what was, of the whole text so far.
  std::string Grow(std::string_view text);
  // The rest, of the text as it ended.
  std::string End(std::string_view text);

 private:
  std::vector<std::string> stop_;
  size_t shown_ = 0;  // bytes
};

}  // namespace keel::tools
