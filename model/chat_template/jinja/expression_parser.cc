// ExpressionParser (parser.h): a template's expressions, by precedence, from its tokens.

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "common/text.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/parser.h"

namespace keel::model::jinja {
namespace {

// What jinja computes when it compiles a template.
bool IsConstant(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return true;
    case ExprKind::kNegative:
    case ExprKind::kPositive:
    case ExprKind::kBinary:
      return std::all_of(expr.items.begin(), expr.items.end(),
                         [](const ExprPtr& item) { return IsConstant(*item); });
    default:
      return false;
  }
}

}  // namespace

ExprPtr ExpressionParser::Seal(ExprPtr node) const {
  for (const ExprPtr& item : node->items) {
    if (item != nullptr) node->depth = std::max(node->depth, item->depth + 1);
  }
  for (const auto& [name, value] : node->keywords) {
    node->depth = std::max(node->depth, value->depth + 1);
  }
  if (node->depth > kMaxSourceNesting) stream_.Refuse("an expression is nested too deep");
  return node;
}

ExprPtr ExpressionParser::Make(ExprKind kind, ExprPtr first, ExprPtr second) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = stream_.line();
  if (first != nullptr) node->items.push_back(Seal(std::move(first)));
  if (second != nullptr) node->items.push_back(Seal(std::move(second)));
  return node;
}

ExprPtr ExpressionParser::ParseExpression(bool with_condition) {
  const NestingGuard guard(stream_, depth_);
  if (!with_condition) return Seal(ParseOr());
  ExprPtr node = ParseOr();
  while (stream_.SkipName("if")) {
    auto conditional = Make(ExprKind::kConditional, std::move(node), ParseOr());
    conditional->items.push_back(stream_.SkipName("else") ? ParseExpression() : nullptr);
    node = std::move(conditional);
  }
  return Seal(std::move(node));
}

ExprPtr ExpressionParser::ParseOr() {
  ExprPtr node = ParseAnd();
  while (stream_.SkipName("or")) node = Make(ExprKind::kOr, std::move(node), ParseAnd());
  return node;
}

ExprPtr ExpressionParser::ParseAnd() {
  ExprPtr node = ParseNot();
  while (stream_.SkipName("and")) node = Make(ExprKind::kAnd, std::move(node), ParseNot());
  return node;
}

ExprPtr ExpressionParser::ParseNot() {
  const NestingGuard guard(stream_, depth_);
  if (stream_.SkipName("not")) return Make(ExprKind::kNot, ParseNot());
  return ParseCompare();
}

ExprPtr ExpressionParser::ParseCompare() {
  static constexpr std::pair<std::string_view, Operator> kCompares[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual},
  };
  ExprPtr first = ParseSum();
  ExprPtr chain;
  while (true) {
    Operator op = Operator::kIn;
    const auto* symbol =
        std::find_if(std::begin(kCompares), std::end(kCompares),
                     [&](const auto& compare) { return stream_.IsOperator(compare.first); });
    const Token& second = stream_.PeekSecond();
    if (symbol != std::end(kCompares)) {
      op = symbol->second;
    } else if (stream_.IsName("not") && second.kind == TokenKind::kName && second.text == "in") {
      stream_.Next();
      op = Operator::kNotIn;
    } else if (!stream_.IsName("in")) {
      break;
    }
    stream_.Next();
    if (chain == nullptr) chain = Make(ExprKind::kCompare, std::move(first));
    chain->operators.push_back(op);
    chain->items.push_back(Seal(ParseSum()));
  }
  return chain == nullptr ? std::move(first) : std::move(chain);
}

ExprPtr ExpressionParser::ParseSum() {
  ExprPtr node = ParseConcat();
  while (stream_.IsOperator("+") || stream_.IsOperator("-")) {
    const Operator op = stream_.Next().text == "+" ? Operator::kAdd : Operator::kSubtract;
    node = Make(ExprKind::kBinary, std::move(node), ParseConcat());
    node->operators.push_back(op);
  }
  return node;
}

ExprPtr ExpressionParser::ParseConcat() {
  ExprPtr first = ParseProduct();
  if (!stream_.IsOperator("~")) return first;
  ExprPtr node = Make(ExprKind::kConcat, std::move(first));
  while (stream_.SkipOperator("~")) node->items.push_back(Seal(ParseProduct()));
  return node;
}

ExprPtr ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, Operator> kProducts[] = {
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo},
  };
  ExprPtr node = ParsePower();
  while (true) {
    const auto* found =
        std::find_if(std::begin(kProducts), std::end(kProducts),
                     [&](const auto& product) { return stream_.IsOperator(product.first); });
    if (found == std::end(kProducts)) return node;
    stream_.Next();
    node = Make(ExprKind::kBinary, std::move(node), ParsePower());
    node->operators.push_back(found->second);
  }
}

ExprPtr ExpressionParser::ParsePower() {
  ExprPtr node = ParseUnary(true);
  while (stream_.SkipOperator("**")) {
    ExprPtr power = ParseUnary(true);
    const bool folds = IsConstant(*node) && !IsConstant(*power);
    node = Make(ExprKind::kBinary, std::move(node), std::move(power));
    node->operators.push_back(Operator::kPower);
    node->sign_last = folds;
  }
  return node;
}

ExprPtr ExpressionParser::ParseUnary(bool with_filters) {
  const NestingGuard guard(stream_, depth_);
  ExprPtr node;
  if (stream_.SkipOperator("-")) {
    node = Make(ExprKind::kNegative, ParseUnary(false));
  } else if (stream_.SkipOperator("+")) {
    node = Make(ExprKind::kPositive, ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  return with_filters ? ParseFiltersAndTests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::ParsePrimary() {
  ExprPtr node = Make(ExprKind::kConst);
  const Token token = stream_.Peek();
  switch (token.kind) {
    case TokenKind::kName:
      stream_.Next();
      if (token.text == "true" || token.text == "True") {
        node->value = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node->value = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node->value = Value::None();
      } else {
        node->kind = ExprKind::kName;
        node->name = token.text;
      }
      return node;
    case TokenKind::kString: {
      std::string text;
      while (stream_.Is(TokenKind::kString)) text += stream_.Next().text;
      node->value = Value::String(std::move(text));
      return node;
    }
    case TokenKind::kInteger: {
      int64_t number = 0;
      const char* end = token.text.data() + token.text.size();
      if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
        stream_.Refuse("the number " + Printable(token.text, 40) + " is beyond 64 bits");
      }
      stream_.Next();
      node->value = Value::Int(number);
      return node;
    }
    case TokenKind::kFloat: {
      double number = 0;
      const char* end = token.text.data() + token.text.size();
      // Beyond what a double holds is infinite, or nothing.
      if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
        number = std::strtod(token.text.c_str(), nullptr);
      }
      stream_.Next();
      node->value = Value::Float(number);
      return node;
    }
    default:
      break;
  }
  if (stream_.SkipOperator("(")) {
    node = ParseTuple(true, "", true);
    stream_.ExpectOperator(")");
    return node;
  }
  if (stream_.IsOperator("[")) return ParseList();
  if (stream_.IsOperator("{")) return ParseDict();
  stream_.Refuse("unexpected " + Shown(token));
}

bool ExpressionParser::TupleEnds(std::string_view end) const {
  return stream_.Is(TokenKind::kPrintEnd) || stream_.Is(TokenKind::kBlockEnd) ||
         stream_.IsOperator(")") || (!end.empty() && stream_.IsName(end));
}

ExprPtr ExpressionParser::ParseTuple(bool with_condition, std::string_view end,
                                     bool parenthesized) {
  ExprPtr tuple = Make(ExprKind::kTuple);
  bool is_tuple = false;
  while (true) {
    if (!tuple->items.empty()) {
      if (!stream_.SkipOperator(",")) break;
      is_tuple = true;
    }
    if (TupleEnds(end)) break;
    tuple->items.push_back(ParseExpression(with_condition));
  }
  if (tuple->items.size() == 1 && !is_tuple) return std::move(tuple->items[0]);
  if (tuple->items.empty() && !parenthesized) {
    stream_.Refuse("expected an expression, found " + Shown(stream_.Peek()));
  }
  return tuple;
}

ExprPtr ExpressionParser::ParseList() {
  ExprPtr list = Make(ExprKind::kList);
  stream_.ExpectOperator("[");
  while (!stream_.IsOperator("]")) {
    if (!list->items.empty()) stream_.ExpectOperator(",");
    if (stream_.IsOperator("]")) break;
    list->items.push_back(ParseExpression());
  }
  stream_.ExpectOperator("]");
  return list;
}

ExprPtr ExpressionParser::ParseDict() {
  ExprPtr dict = Make(ExprKind::kDict);
  stream_.ExpectOperator("{");
  while (!stream_.IsOperator("}")) {
    if (!dict->items.empty()) stream_.ExpectOperator(",");
    if (stream_.IsOperator("}")) break;
    dict->items.push_back(ParseExpression());
    stream_.ExpectOperator(":");
    dict->items.push_back(ParseExpression());
  }
  stream_.ExpectOperator("}");
  return dict;
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr node) {
  while (true) {
    if (stream_.SkipOperator(".")) {
      if (stream_.Is(TokenKind::kInteger)) {
        ExprPtr index = ParsePrimary();
        node = Make(ExprKind::kElement, std::move(node), std::move(index));
      } else {
        node = Make(ExprKind::kAttribute, std::move(node));
        node->name = stream_.ExpectName();
      }
    } else if (stream_.IsOperator("[")) {
      node = ParseElement(std::move(node));
    } else if (stream_.IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseElement(ExprPtr node) {
  stream_.ExpectOperator("[");
  ExprPtr parts[3];
  size_t count = 0;
  bool slice = false;
  while (!stream_.IsOperator("]")) {
    if (stream_.SkipOperator(":")) {
      slice = true;
      if (++count > 2) stream_.Refuse("a slice has at most three parts");
    } else if (parts[count] != nullptr) {
      stream_.Refuse("expected ']', found " + Shown(stream_.Peek()) +
                     "; several indices at once are not supported");
    } else {
      parts[count] = ParseExpression();
    }
  }
  stream_.ExpectOperator("]");
  if (!slice) {
    // As Jinja has it, no index is an empty tuple.
    if (parts[0] == nullptr) parts[0] = Make(ExprKind::kTuple);
    return Make(ExprKind::kElement, std::move(node), std::move(parts[0]));
  }
  ExprPtr result = Make(ExprKind::kSlice, std::move(node));
  for (ExprPtr& part : parts) result->items.push_back(std::move(part));
  return result;
}

ExprPtr ExpressionParser::ParseCall(ExprPtr node) {
  ExprPtr call = Make(ExprKind::kCall, std::move(node));
  ParseArguments(call.get());
  return call;
}

void ExpressionParser::ParseArguments(Expr* call) {
  stream_.ExpectOperator("(");
  const auto has = [&](std::string_view name) {
    return std::any_of(call->keywords.begin(), call->keywords.end(),
                       [&](const auto& keyword) { return keyword.first == name; });
  };
  bool first = true;
  while (!stream_.IsOperator(")")) {
    if (!first) stream_.ExpectOperator(",");
    if (stream_.IsOperator(")")) break;
    first = false;
    const bool list = stream_.IsOperator("*");
    if (list || stream_.IsOperator("**")) {
      const std::string star = stream_.Next().text;
      if (has("**") || (list && has("*"))) stream_.Refuse("unexpected '" + star + "'");
      call->keywords.emplace_back(star, ParseExpression());
      continue;
    }
    const Token& second = stream_.PeekSecond();
    if (stream_.Is(TokenKind::kName) && second.kind == TokenKind::kOperator && second.text == "=") {
      std::string name = stream_.ExpectName();
      if (has("**")) stream_.Refuse("unexpected '" + name + "' behind '**'");
      if (has(name)) stream_.Refuse("the argument '" + name + "' is given twice");
      stream_.ExpectOperator("=");
      call->keywords.emplace_back(std::move(name), ParseExpression());
    } else {
      if (!call->keywords.empty()) stream_.Refuse("an argument without a name after one with it");
      call->items.push_back(ParseExpression());
    }
  }
  stream_.ExpectOperator(")");
}

ExprPtr ExpressionParser::ParseFiltersAndTests(ExprPtr node) {
  while (true) {
    if (stream_.IsOperator("|")) {
      node = ParseFilters(std::move(node), false);
    } else if (stream_.SkipName("is")) {
      node = ParseTest(std::move(node));
    } else if (stream_.IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr target, bool started) {
  while (started || stream_.SkipOperator("|")) {
    started = false;
    ExprPtr filter = Make(ExprKind::kFilter);
    filter->items.push_back(target == nullptr ? nullptr : Seal(std::move(target)));
    filter->name = stream_.ExpectName();
    while (stream_.SkipOperator(".")) filter->name += "." + stream_.ExpectName();
    if (stream_.IsOperator("(")) ParseArguments(filter.get());
    target = std::move(filter);
  }
  return target;
}

ExprPtr ExpressionParser::ParseTest(ExprPtr node) {
  const bool negated = stream_.SkipName("not");
  ExprPtr test = Make(ExprKind::kTest, std::move(node));
  test->name = stream_.ExpectName();
  while (stream_.SkipOperator(".")) test->name += "." + stream_.ExpectName();
  const bool word = stream_.Is(TokenKind::kName) && !stream_.IsName("else") &&
                    !stream_.IsName("or") && !stream_.IsName("and");
  if (stream_.IsOperator("(")) {
    ParseArguments(test.get());
  } else if (word || stream_.Is(TokenKind::kString) || stream_.Is(TokenKind::kInteger) ||
             stream_.Is(TokenKind::kFloat) || stream_.IsOperator("[") || stream_.IsOperator("{")) {
    if (stream_.IsName("is")) stream_.Refuse("tests cannot be chained with 'is'");
    test->items.push_back(Seal(ParsePostfix(ParsePrimary())));
  }
  return negated ? Make(ExprKind::kNot, std::move(test)) : std::move(test);
}

}  // namespace keel::model::jinja
