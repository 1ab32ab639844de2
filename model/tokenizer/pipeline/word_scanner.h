// WordScanner: matches found without Oniguruma, for the expressions that most tokenizers split by,
// which take ten times as long. What it finds is what the expression finds, or it says that the
// expression must be asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace keel::model {

class WordScanner {
 public:
  // Knows GPT-2's expression, those of Llama-3, Qwen2 and cl100k_base, and DeepSeek's three as a
  // whole, and others by their first alternatives, which are all that decide on a word: those after
  // them are not tried where one of them matches.
  static WordScanner For(std::string_view expression);

  // Of well-formed UTF-8: the first place from `at` on where a match may begin; text.size(): none
  // does. Of expressions that match in few places.
  size_t MayBegin(std::string_view text, size_t at) const;

  // The end of the match that begins at `at` < text.size(); `at` itself where the expression must
  // be asked, since letters that are not ASCII may be a contraction here, or none of the
  // alternatives that are known matches.
  size_t MatchEnd(std::string_view text, size_t at) const;

 private:
  enum class Rule {
    kNone,
    kWords,       // a space or nothing, then letters
    kCasedWords,  // ... then capitals or none and small letters, or capitals; then a contraction
    kGpt2,        // everything
    kLlama3,      // everything
    kDeepSeek,    // everything
    kDigits,      // up to three
    kIdeographs,
  };
  struct Character {
    uint8_t classes = 0;
    size_t end = 0;  // where the next one begins
  };
  Character At(std::string_view text, size_t at) const;  // at <= text.size()
  size_t EndOfIn(uint8_t classes, std::string_view text, size_t at) const;
  size_t EndOfNotIn(uint8_t classes, std::string_view text, size_t at) const;
  std::optional<size_t> ContractionEnd(std::string_view text, size_t at) const;
  size_t WordEnd(std::string_view text, size_t at) const;
  size_t CasedWordEnd(std::string_view text, size_t at) const;
  size_t SpacesEnd(std::string_view text, size_t at) const;
  size_t LineEnd(std::string_view text, size_t at) const;
  size_t Gpt2End(std::string_view text, size_t at) const;
  size_t Llama3End(std::string_view text, size_t at) const;
  size_t DeepSeekEnd(std::string_view text, size_t at) const;
  size_t DigitsEnd(std::string_view text, size_t at) const;
  size_t IdeographsEnd(std::string_view text, size_t at) const;

  const uint8_t* classes_ = nullptr;
  Rule rule_ = Rule::kNone;
  size_t max_digits_ = 3;  // of kLlama3 and kDigits
};

}  // namespace keel::model
