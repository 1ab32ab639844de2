// Makes the tree of a template from its tokens: Jinja's grammar as transformers sets it up
// (trim_blocks, lstrip_blocks, loop controls, {% generation %}), without
// extends, block and autoescape, which are refused by name.
#pragma once

#include <algorithm>
#include <string_view>

#include "model/chat_template/jinja/lexer.h"
#include "model/chat_template/jinja/syntax.h"

namespace keel::model::jinja {

// Fails with the line of what is wrong.
Block ParseTemplate(std::string_view source);

// What both halves of the parser, expressions and statements, read from.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek() const { return tokens_[at_]; }
  const Token& PeekSecond() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Next();
  bool Is(TokenKind kind) const { return Peek().kind == kind; }
  bool IsOperator(std::string_view op) const {
    return Is(TokenKind::kOperator) && Peek().text == op;
  }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName) && Peek().text == name; }
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  void ExpectOperator(std::string_view op);
  void ExpectName(std::string_view name);
  std::string ExpectName();
  void Expect(TokenKind kind);
  int line() const { return Peek().line; }
  [[noreturn]] void Refuse(std::string message) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// A token as messages have it.
std::string Shown(const Token& token);

// Refuses what is nested deeper than kMaxSourceNesting.
class NestingGuard {
 public:
  NestingGuard(const TokenStream& stream, int* depth);
  ~NestingGuard() { --*depth_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  int* depth_;
};

class ExpressionParser {
 public:
  // `depth` is shared with the statements around.
  ExpressionParser(TokenStream* stream, int* depth) : stream_(*stream), depth_(depth) {}

  ExprPtr ParseExpression(bool with_condition = true);
  // One expression, or several with commas between them: a tuple. `end`: a name that ends it.
  ExprPtr ParseTuple(bool with_condition = true, std::string_view end = "",
                     bool parenthesized = false);
  // What follows a "|", for {% filter %} and {% set x | f %}; `started`: its name comes first.
  ExprPtr ParseFilters(ExprPtr target, bool started);

 private:
  // Notes how deep the tree of a whole expression is, and refuses one that is too deep, as a chain
  // of a million sums is.
  ExprPtr Seal(ExprPtr node) const;
  ExprPtr Make(ExprKind kind, ExprPtr first = nullptr, ExprPtr second = nullptr) const;
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filters);
  ExprPtr ParsePrimary();
  ExprPtr ParseList();
  ExprPtr ParseDict();
  ExprPtr ParsePostfix(ExprPtr node);
  ExprPtr ParseFiltersAndTests(ExprPtr node);
  ExprPtr ParseElement(ExprPtr node);
  ExprPtr ParseCall(ExprPtr node);
  void ParseArguments(Expr* call);
  ExprPtr ParseTest(ExprPtr node);
  bool TupleEnds(std::string_view end) const;

  TokenStream& stream_;
  int* depth_;
};

}  // namespace keel::model::jinja
