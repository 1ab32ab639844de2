// Pattern: what a tokenizer's file splits or replaces text by: a regular expression or a string.
//
// Expressions are Oniguruma's in its own syntax, as Hugging Face's `tokenizers` reads them: `^`
// and
// `$` stand at lines, `&&` intersects classes, `\s` and `\p{L}` are Unicode's. Immutable,
// thread-safe; the state of a search is the caller's PatternScratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

// What searches need beside the pattern; one a thread.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

  // Room for the pieces of a text, kept from one text to the next: fresh memory costs page faults.
  std::vector<Span> matches;
  std::vector<Span> pieces;

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

class Pattern {
 public:
  // kInvalidData, with `where` first, for an expression that Oniguruma refuses, an empty one or one
  // longer than 64 KiB.
  static Result<Pattern> Regex(std::string_view expression, std::string_view where);
  static Result<Pattern> Literal(std::string_view text, std::string_view where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Appends the matches in `text`, from left to right, in bytes of it; an empty match right after a
  // match counts as none. Throws Error(kInvalidData) when the limit of 10 million steps for one
  // match is reached.
  void FindAll(std::string_view text, PatternScratch* scratch, std::vector<Span>* matches) const;

 private:
  struct Compiled;
  explicit Pattern(std::string literal);
  explicit Pattern(std::unique_ptr<Compiled> compiled);
  std::string literal_;
  std::unique_ptr<Compiled> compiled_;  // null: the literal
};

}  // namespace keel::model
