// TextRules: what the text of rows becomes tokens by, or why it cannot.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizer/tokenizer.h"

namespace keel::trainer {

struct ChatRules;  // trainer/data/rows/chat_rules.h

struct TextRules {
  TextRules() = default;
  TextRules(const model::Tokenizer& t) : tokenizer(&t) {}  // NOLINT: all that most readers need

  const model::Tokenizer* tokenizer = nullptr;  // not owned; null: rows bring their ids
  std::string tokenizer_name = "bytes";         // for people
  std::string ids_only;                         // without one, why: "the model has ..."
  // Whether a text gets what the tokenizer's own template puts around one, such as the id that
  // begins it. Not for bytes.
  bool frames_text = false;

  std::shared_ptr<const ChatRules> chat;  // null: ChatML
  std::string no_chat;                    // why messages cannot be rendered, though text can; or ""
  bool chat_unusable = false;  // there is a template of the model's own, which no_chat is of
};

}  // namespace keel::trainer
