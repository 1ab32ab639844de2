// TextRules: what the text of rows becomes tokens by, or why it cannot.
#pragma once

#include <string>

#include "model/tokenizer/tokenizer.h"

namespace keel::trainer {

struct TextRules {
  TextRules() = default;
  TextRules(const model::Tokenizer& t) : tokenizer(&t) {}  // NOLINT: all that most readers need

  const model::Tokenizer* tokenizer = nullptr;  // not owned; null: rows bring their ids
  std::string ids_only;                         // then, why: "the model has ..."
  std::string no_chat;  // why messages cannot be rendered, though text can; "": they become ChatML
};

}  // namespace keel::trainer
