#include "serve/tool_call_stream.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace keel::serve {

namespace {

using turns::ToolFormat;

constexpr std::string_view kHermesBegin = "<tool_call>", kHermesEnd = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralBegin = "[TOOL_CALLS]";
constexpr std::string_view kName = "\"name\"";

// How many bytes at the end of `text` may be the beginning of `mark`.
size_t BegunAtEnd(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size)
    if (text.ends_with(mark.substr(0, size))) return size;
  return 0;
}

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  return text;
}

size_t WithoutSpaceAtEnd(std::string_view text, size_t size) {
  while (size > 0 && IsSpace(text[size - 1])) --size;
  return size;
}

}  // namespace

std::vector<std::string_view> ToolCallMarks() {
  return {kHermesBegin, kHermesEnd, kPythonTag, kMistralBegin};
}

size_t ToolCallStream::FindCall(bool last, size_t* sure) const {
  const std::string_view text = held_;
  *sure = text.size();
  if (format_ == ToolFormat::kLlama3Json) {
    // The whole text is calls, or none of it is.
    *sure = 0;
    const size_t begin = text.size() - TrimLeft(text).size();
    const std::string_view rest = text.substr(begin);
    if (any_content_ || rest.empty()) {
      *sure = any_content_ || last ? text.size() : 0;
      return std::string_view::npos;
    }
    if (rest.starts_with(kPythonTag)) return begin;
    if (rest.starts_with('{')) {
      const std::string_view inner = TrimLeft(rest.substr(1));
      if (inner.starts_with(kName)) return begin;
      if (!last && kName.starts_with(inner)) return std::string_view::npos;
    } else if (!last && kPythonTag.starts_with(rest)) {
      return std::string_view::npos;
    }
    *sure = text.size();
    return std::string_view::npos;
  }
  const std::string_view mark = format_ == ToolFormat::kMistral ? kMistralBegin : kHermesBegin;
  const size_t at = text.find(mark);
  if (at == std::string_view::npos && !last) *sure = text.size() - BegunAtEnd(text, mark);
  return at;
}

void ToolCallStream::Give(std::vector<turns::ToolCall> calls, std::string_view text, Part* part) {
  const bool readable =
      !calls.empty() && std::all_of(calls.begin(), calls.end(), [](const turns::ToolCall& call) {
        return call.problem.empty();
      });
  if (!readable) {
    part->content += text;
    any_content_ = true;
    return;
  }
  for (turns::ToolCall& call : calls) {
    if (!parallel_ && given_ > 0) return;
    part->calls.push_back(std::move(call));
    ++given_;
  }
}

void ToolCallStream::TakeCalls(bool last, Part* part) {
  if (format_ != ToolFormat::kHermes) {
    // They end with the text.
    if (!last) return;
    Give(turns::ParseToolCalls(format_, held_), held_, part);
    held_.clear();
    return;
  }
  // One after the other; what stands between two is content.
  while (state_ == State::kCalls) {
    const size_t end = held_.find(kHermesEnd);
    if (end == std::string::npos) {
      if (last) Give({}, std::exchange(held_, {}), part);
      return;
    }
    const std::string call = held_.substr(0, end + kHermesEnd.size());
    held_.erase(0, call.size());
    Give(turns::ParseToolCalls(format_, call), call, part);
    state_ = State::kContent;
    if (TrimLeft(held_).starts_with(kHermesBegin)) {
      held_.erase(0, held_.size() - TrimLeft(held_).size());
      state_ = State::kCalls;
    }
  }
}

ToolCallStream::Part ToolCallStream::Add(std::string_view text, bool last) {
  Part part;
  held_ += text;
  while (true) {
    if (state_ == State::kCalls) TakeCalls(last, &part);
    if (state_ == State::kCalls) return part;
    size_t sure = 0;
    const size_t at = FindCall(last, &sure);
    const bool found = at != std::string::npos;
    // The white space before a call, and behind the last one, belongs to neither.
    const size_t trimmed = WithoutSpaceAtEnd(held_, found ? at : sure);
    const size_t shown = !found && last && given_ == 0 ? held_.size() : trimmed;
    part.content += held_.substr(0, shown);
    any_content_ = any_content_ || shown > 0;
    held_.erase(0, found ? at : shown);
    if (!found) return part;
    state_ = State::kCalls;
  }
}

}  // namespace keel::serve
