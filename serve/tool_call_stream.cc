#include "serve/tool_call_stream.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/enum_names.h"
#include "common/text.h"
#include "turns/tool_marks.h"

namespace keel::serve {

namespace {

using turns::ToolFormat;

// What ends the call that `text` begins with; "": the end of the text.
std::string_view EndOf(ToolFormat format, std::string_view text) {
  for (const turns::ToolMarks& marks : turns::MarksOf(format))
    if (text.starts_with(marks.begin)) return marks.end;
  return "";
}

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
  std::vector<std::string_view> all = {turns::kPythonTag, turns::kMistralId,
                                       turns::kMistralArguments, turns::kDeepseekSeparator};
  for (const auto& format : kEnumNames<ToolFormat>) {
    for (const turns::ToolMarks& marks : turns::MarksOf(format.value)) {
      if (marks.begin == turns::kFunctionMarks.begin) continue;  // a text that names the function
      for (const std::string_view mark : {marks.begin, marks.end})
        if (!mark.empty()) all.push_back(mark);
    }
  }
  return all;
}

// A text begins with calls, or has none.
size_t ToolCallStream::FindLlamaCall(bool last, size_t* sure) const {
  const std::string_view text = held_;
  *sure = 0;
  const size_t begin = text.size() - TrimLeft(text).size();
  const std::string_view rest = text.substr(begin);
  if (any_content_ || rest.empty()) {
    *sure = any_content_ || last ? text.size() : 0;
    return std::string_view::npos;
  }
  const turns::Beginning beginning = turns::BeginningOfLlamaCall(rest);
  if (beginning == turns::Beginning::kCall) return begin;
  if (beginning == turns::Beginning::kNone || last) *sure = text.size();
  return std::string_view::npos;
}

size_t ToolCallStream::FindCall(bool last, size_t* sure) const {
  if (format_ == ToolFormat::kLlama3Json) return FindLlamaCall(last, sure);
  const std::string_view text = held_;
  *sure = text.size();
  size_t at = std::string_view::npos;
  for (const turns::ToolMarks& marks : turns::MarksOf(format_)) {
    at = std::min(at, text.find(marks.begin));
    if (!last) *sure = std::min(*sure, text.size() - BegunAtEnd(text, marks.begin));
  }
  return at;
}

void ToolCallStream::Give(std::vector<turns::ToolCall> calls, std::string_view text, Part* part) {
  const bool readable =
      !calls.empty() && std::all_of(calls.begin(), calls.end(), [](const turns::ToolCall& call) {
        return call.problem.empty();
      });
  const std::string before = std::exchange(space_, {});
  if (!readable) {
    part->content += before;
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

// The size of the call, or the calls, that what is held begins with; npos: that is not known yet,
// or all of it.
size_t ToolCallStream::SizeOfCall(bool last) const {
  if (format_ == ToolFormat::kLlama3Json)
    return last ? turns::EndOfLlamaCalls(held_) : std::string::npos;
  const std::string_view mark = EndOf(format_, held_);
  const size_t end = mark.empty() ? std::string::npos : held_.find(mark);
  return end == std::string::npos ? end : end + mark.size();
}

// One after the other; what stands between two is content. What is not ended, ends with the text.
void ToolCallStream::TakeCalls(bool last, Part* part) {
  while (state_ == State::kCalls) {
    const size_t size = SizeOfCall(last);
    if (size == std::string::npos && !last) return;
    const std::string call = held_.substr(0, size);
    held_.erase(0, call.size());
    Give(turns::ParseToolCalls(format_, call, schemas_), call, part);
    if (size == std::string::npos) return;
    state_ = State::kContent;
    const std::string_view rest = TrimLeft(held_);
    if (!EndOf(format_, rest).empty()) {
      const size_t size_of_space = held_.size() - rest.size();
      space_ = held_.substr(0, size_of_space);
      held_.erase(0, size_of_space);
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
    if (found) space_ = held_.substr(shown, at - shown);
    held_.erase(0, found ? at : shown);
    if (!found) return part;
    state_ = State::kCalls;
  }
}

}  // namespace keel::serve
