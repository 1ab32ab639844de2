// AddedTokens: the tokens that are found in a text before the model sees it, such as
// <|im_start|>. Immutable, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // and those after it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // left out when ids are decoded
  bool operator==(const AddedToken&) const = default;
};

// A part of a text: an added token, or what lies between two.
struct Cut {
  Span span;
  int32_t id = -1;  // -1: text
};

// Looks for a set of strings in a text, all at once: of those that begin first, the longest.
class AddedTokenFinder {
 public:
  // The longest content that is looked for.
  static constexpr size_t kMaxBytes = 4096;

  // `content` in place of the token's own. kInvalidData when it is empty or too long.
  Status Add(const AddedToken& token, std::string_view content);

  // Appends the parts of the text in order; no part of text is empty. A token whose flags take
  // spaces that the one before it has taken, too, may overlap it.
  void Find(std::string_view text, std::vector<Cut>* cuts) const;

 private:
  struct Flags {
    int32_t id = -1;
    bool single_word = false;
    bool lstrip = false;
    bool rstrip = false;
  };
  // The flags' index and the end of the longest token that begins at `at`; {-1, at} for none.
  std::pair<int32_t, size_t> Longest(std::string_view text, size_t at) const;

  std::vector<Flags> flags_;
  std::vector<int32_t> ends_;  // by node of the trie: the flags' index of the token that ends there
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::array<bool, 256> begins_{};                // bytes that a token begins with
};

}  // namespace keel::model
