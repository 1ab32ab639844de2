// ToolCallStream: what a model writes that may call tools, told apart as it comes: content and
// calls. Pure, torch-free.
//
// Content is given out as soon as it can be nothing else; what may yet become a call's mark, and
// white space before one, is held back. A call is given out whole. One that cannot be read is
// content, as it stands: nobody could carry it out, and nothing that was written is lost.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "turns/tool_calls.h"

namespace keel::serve {

class ToolCallStream {
 public:
  // `parallel`: all calls; else the first one alone. `schemas`: of the tools, by which some formats
  // are read (turns/tool_calls.h); they must outlive this.
  ToolCallStream(turns::ToolFormat format, bool parallel, const Json& schemas)
      : format_(format), parallel_(parallel), schemas_(schemas) {}

  struct Part {
    std::string content;
    std::vector<turns::ToolCall> calls;
  };
  // What `text`, which follows what was added before, makes certain; behind the `last` all is.
  Part Add(std::string_view text, bool last);

 private:
  enum class State { kContent, kCalls };

  // Where a call begins in what is held; npos: nowhere so far. `sure`: bytes before which none can.
  size_t FindCall(bool last, size_t* sure) const;
  size_t FindLlamaCall(bool last, size_t* sure) const;
  size_t SizeOfCall(bool last) const;
  void TakeCalls(bool last, Part* part);
  void Give(std::vector<turns::ToolCall> calls, std::string_view text, Part* part);

  const turns::ToolFormat format_;
  const bool parallel_;
  const Json& schemas_;
  State state_ = State::kContent;
  std::string held_;
  std::string space_;  // that stood before the call that is being read
  bool any_content_ = false;
  size_t given_ = 0;  // calls
};

// The marks of calls that may be special tokens, which texts are shown without.
std::vector<std::string_view> ToolCallMarks();

}  // namespace keel::serve
