// Cuts a template into text and the tokens of its tags, with the white space around tags removed as
// trim_blocks, lstrip_blocks, "-" and "+" ask for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keel::model::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,  // text: what the literal stands for
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// Fails with the line of what is wrong. The last token is kEnd.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace keel::model::jinja
