#include "rollout/partial.h"

#include <algorithm>
#include <cstddef>

namespace keel::rollout {

void Partial::Append(const Partial& more) {
  const int64_t behind = size();
  for (const VersionSpan& span : more.spans) {
    if (spans.empty() || spans.back().version != span.version)
      spans.push_back({behind + span.begin, span.version});
  }
  for (const TokenRange& range : more.given) {
    const TokenRange moved{behind + range.begin, behind + range.end};
    if (!given.empty() && given.back().end == moved.begin) {
      given.back().end = moved.end;  // one range, cut in two by From
    } else {
      given.push_back(moved);
    }
  }
  if (!more.tool_memory.empty()) tool_memory = more.tool_memory;
  tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
  log_probs.insert(log_probs.end(), more.log_probs.begin(), more.log_probs.end());
}

Partial Partial::From(int64_t begin) const {
  Partial rest;
  rest.tool_memory = tool_memory;
  rest.tokens.assign(tokens.begin() + begin, tokens.end());
  if (!log_probs.empty()) rest.log_probs.assign(log_probs.begin() + begin, log_probs.end());
  if (rest.tokens.empty()) return rest;
  for (const VersionSpan& span : spans) {
    if (!rest.spans.empty() && span.begin <= begin) rest.spans.clear();
    rest.spans.push_back({std::max<int64_t>(0, span.begin - begin), span.version});
  }
  for (const TokenRange& range : given) {
    if (range.end > begin)
      rest.given.push_back({std::max<int64_t>(0, range.begin - begin), range.end - begin});
  }
  return rest;
}

Partial Partial::Until(int64_t end) const {
  Partial begin = *this;
  begin.tokens.resize(static_cast<size_t>(end));
  if (!begin.log_probs.empty()) begin.log_probs.resize(static_cast<size_t>(end));
  std::erase_if(begin.spans, [&](const VersionSpan& span) { return span.begin >= end; });
  std::erase_if(begin.given, [&](const TokenRange& range) { return range.begin >= end; });
  if (!begin.given.empty()) begin.given.back().end = std::min(begin.given.back().end, end);
  return begin;
}

const char* ProblemOf(const std::vector<VersionSpan>& spans, int64_t tokens) {
  if (tokens == 0) return spans.empty() ? nullptr : "spans of no tokens";
  if (spans.empty() || spans.front().begin != 0) return "its first tokens are of no version";
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin <= spans[i - 1].begin) return "its spans do not ascend";
    if (spans[i].version <= spans[i - 1].version) return "its versions do not ascend";
  }
  return spans.back().begin < tokens ? nullptr : "a span begins behind its last token";
}

}  // namespace keel::rollout
