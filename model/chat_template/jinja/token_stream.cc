// TokenStream (parser.h): the tokens of a template one after another, and what is said of one that
// was not expected.

#include "common/text.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/parser.h"

namespace keel::model::jinja {

std::string Shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kPrintBegin:
      return "'{{'";
    case TokenKind::kPrintEnd:
      return "'}}'";
    default:
      return "'" + Printable(token.text, 40) + "'";
  }
}

Token TokenStream::Next() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::SkipOperator(std::string_view op) {
  if (!IsOperator(op)) return false;
  Next();
  return true;
}

bool TokenStream::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Next();
  return true;
}

void TokenStream::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) Refuse("expected '" + std::string(op) + "', found " + Shown(Peek()));
}

void TokenStream::ExpectName(std::string_view name) {
  if (!SkipName(name)) Refuse("expected '" + std::string(name) + "', found " + Shown(Peek()));
}

std::string TokenStream::ExpectName() {
  if (!Is(TokenKind::kName)) Refuse("expected a name, found " + Shown(Peek()));
  return Next().text;
}

void TokenStream::Expect(TokenKind kind) {
  if (!Is(kind)) {
    Refuse("expected " + Shown(Token{kind, "a token", 0}) + ", found " + Shown(Peek()));
  }
  Next();
}

void TokenStream::Refuse(std::string message) const { throw Failure{std::move(message), line()}; }

NestingGuard::NestingGuard(const TokenStream& stream, int* depth) : depth_(depth) {
  // Above the increment: a constructor that throws has no destructor that takes it back.
  if (*depth >= kMaxSourceNesting) stream.Refuse("the template is nested too deep");
  ++*depth_;
}

}  // namespace keel::model::jinja
