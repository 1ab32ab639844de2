// Partial: a response before it is whole. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/token_range.h"

namespace keel::rollout {

// Tokens from `begin` to the next span's were chosen by weights of this version.
struct VersionSpan {
  int64_t begin = 0;
  int64_t version = 0;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

// A response as far as it has come. A token is a function of these, of the request and of the
// weights that choose it, so that whoever has them can go on.
struct Partial {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;    // of each token, or of none; 0 of a given one
  std::vector<VersionSpan> spans;  // ascending in both; the first begins at 0, if there is a token
  // Tokens that nobody chose, what tools said and the template's text around it: ascending, with a
  // chosen token between any two. They count to the span that they lie in.
  std::vector<TokenRange> given = {};
  // What the tools want to know again, and what is counted of them: turns::ToolMemory as text.
  std::string tool_memory = {};
  friend bool operator==(const Partial&, const Partial&) = default;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // `more` are the tokens behind these, its spans and ranges counted from its own beginning. Its
  // tool memory replaces what was there, unless it has none.
  void Append(const Partial& more);
  // The tokens from `begin` on, spans and ranges counted from there: what Append would add to those
  // before.
  Partial From(int64_t begin) const;
  // The tokens before `end`.
  Partial Until(int64_t end) const;
};

// What is wrong with the spans of `tokens` tokens; null: nothing.
const char* ProblemOf(const std::vector<VersionSpan>& spans, int64_t tokens);

}  // namespace keel::rollout
