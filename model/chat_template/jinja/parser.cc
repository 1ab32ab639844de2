#include "model/chat_template/jinja/parser.h"

#include <algorithm>
#include <utility>

namespace keel::model::jinja {
namespace {

class StatementParser {
 public:
  explicit StatementParser(std::string_view source)
      : stream_(Tokenize(source)), expressions_(&stream_, &depth_) {}

  Block Run() {
    Block block = ParseBlock({});
    if (!stream_.Is(TokenKind::kEnd)) stream_.Refuse("unexpected token");
    return block;
  }

 private:
  using Ends = std::vector<std::string_view>;

  static std::unique_ptr<Stmt> Make(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Until a tag that begins with one of `ends`, of which the stream is then at the name.
  Block ParseBlock(const Ends& ends) {
    const NestingGuard guard(stream_, &depth_);
    Block block;
    while (true) {
      const int line = stream_.line();
      switch (stream_.Peek().kind) {
        case TokenKind::kText:
          block.push_back(Make(StmtKind::kText, line));
          block.back()->text = stream_.Next().text;
          break;
        case TokenKind::kPrintBegin:
          stream_.Next();
          block.push_back(Make(StmtKind::kPrint, line));
          block.back()->exprs.push_back(expressions_.ParseTuple());
          stream_.Expect(TokenKind::kPrintEnd);
          break;
        case TokenKind::kBlockBegin: {
          stream_.Next();
          const bool over = std::any_of(ends.begin(), ends.end(),
                                        [&](std::string_view end) { return stream_.IsName(end); });
          if (over) return block;
          block.push_back(ParseTag(line));
          stream_.Expect(TokenKind::kBlockEnd);
          break;
        }
        default:
          if (!ends.empty()) {
            stream_.Refuse("the template ends where '" + std::string(ends.back()) +
                           "' is still missing");
          }
          return block;
      }
    }
  }

  // A body, and the name in the tag that ends it. As in Python a colon may stand before it.
  Block ParseBody(const Ends& ends) {
    stream_.SkipOperator(":");
    stream_.Expect(TokenKind::kBlockEnd);
    return ParseBlock(ends);
  }

  std::unique_ptr<Stmt> ParseTag(int line) {
    const std::string tag = stream_.ExpectName();
    if (tag == "if") return ParseIf(line);
    if (tag == "for") return ParseFor(line);
    if (tag == "set") return ParseSet(line);
    if (tag == "macro") return ParseMacro(line);
    if (tag == "print") {
      auto stmt = Make(StmtKind::kPrint, line);
      while (!stream_.Is(TokenKind::kBlockEnd)) {
        if (!stmt->exprs.empty()) stream_.ExpectOperator(",");
        stmt->exprs.push_back(expressions_.ParseExpression());
      }
      return stmt;
    }
    if (tag == "call") return ParseCallBlock(line);
    if (tag == "with") return ParseWith(line);
    if (tag == "filter") {
      auto stmt = Make(StmtKind::kFilterBlock, line);
      stmt->exprs.push_back(expressions_.ParseFilters(nullptr, true));
      stmt->bodies.push_back(ParseBody({"endfilter"}));
      stream_.ExpectName("endfilter");
      return stmt;
    }
    if (tag == "generation") {
      auto stmt = Make(StmtKind::kGeneration, line);
      const int loops = std::exchange(loops_, 0);
      stmt->bodies.push_back(ParseBody({"endgeneration"}));
      loops_ = loops;
      stream_.ExpectName("endgeneration");
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) stream_.Refuse("'" + tag + "' outside of a loop");
      return Make(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
    }
    if (tag == "include" || tag == "import" || tag == "from") return ParseLoad(tag, line);
    for (std::string_view known : {"extends", "block", "autoescape"}) {
      if (tag == known) stream_.Refuse("the tag '" + tag + "' is not supported in chat templates");
    }
    stream_.Refuse("unknown tag '" + tag + "'");
  }

  // include, import and from: an error only where they run.
  std::unique_ptr<Stmt> ParseLoad(const std::string& tag, int line) {
    auto stmt = Make(StmtKind::kLoad, line);
    stmt->text = tag;
    stmt->exprs.push_back(expressions_.ParseExpression());
    const auto with_context = [&] {
      const bool follows = stream_.IsName("with") || stream_.IsName("without");
      if (!follows || stream_.PeekSecond().text != "context") return false;
      stream_.Next();
      stream_.ExpectName("context");
      return true;
    };
    if (tag == "include" && stream_.IsName("ignore") && stream_.PeekSecond().text == "missing") {
      stream_.Next();
      stream_.ExpectName("missing");
      stmt->may_miss = true;
    }
    if (tag == "import") {
      stream_.ExpectName("as");
      stmt->parameters.push_back(OneName());
    }
    if (tag != "from") {
      with_context();
      return stmt;
    }
    stream_.ExpectName("import");
    do {
      if (!stmt->parameters.empty() && with_context()) break;
      Target name = OneName();
      if (name.name[0] == '_')
        stream_.Refuse("'" + name.name + "' cannot be imported: it begins with '_'");
      stmt->parameters.push_back(stream_.SkipName("as") ? OneName() : std::move(name));
      if (with_context()) break;
    } while (stream_.SkipOperator(","));
    return stmt;
  }

  std::unique_ptr<Stmt> ParseIf(int line) {
    auto stmt = Make(StmtKind::kIf, line);
    while (true) {
      stmt->exprs.push_back(expressions_.ParseTuple(false));
      stmt->bodies.push_back(ParseBody({"elif", "else", "endif"}));
      if (stream_.SkipName("elif")) continue;
      if (stream_.SkipName("else")) stmt->bodies.push_back(ParseBody({"endif"}));
      stream_.ExpectName("endif");
      return stmt;
    }
  }

  std::unique_ptr<Stmt> ParseFor(int line) {
    auto stmt = Make(StmtKind::kFor, line);
    stmt->target = ParseTargets(false);
    stream_.ExpectName("in");
    stmt->exprs.push_back(expressions_.ParseTuple(false, "recursive"));
    stmt->exprs.push_back(stream_.SkipName("if") ? expressions_.ParseExpression() : nullptr);
    stmt->recursive = stream_.SkipName("recursive");
    ++loops_;
    stmt->bodies.push_back(ParseBody({"else", "endfor"}));
    --loops_;
    stmt->bodies.emplace_back();
    if (stream_.SkipName("else")) stmt->bodies.back() = ParseBody({"endfor"});
    stream_.ExpectName("endfor");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseSet(int line) {
    auto stmt = Make(StmtKind::kSet, line);
    stmt->target = ParseTargets(true);
    if (stream_.SkipOperator("=")) {
      stmt->exprs.push_back(expressions_.ParseTuple());
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->exprs.push_back(expressions_.ParseFilters(nullptr, false));
    stmt->bodies.push_back(ParseBody({"endset"}));
    stream_.ExpectName("endset");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseMacro(int line) {
    auto stmt = Make(StmtKind::kMacro, line);
    stmt->target = OneName();
    ParseSignature(stmt.get());
    ParseOwnBody(stmt.get(), "endmacro");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseCallBlock(int line) {
    auto stmt = Make(StmtKind::kCallBlock, line);
    if (stream_.IsOperator("(")) ParseSignature(stmt.get());
    stmt->exprs.push_back(expressions_.ParseExpression());
    if (stmt->exprs[0]->kind != ExprKind::kCall) {
      stream_.Refuse("'call' needs the call of a macro");
    }
    ParseOwnBody(stmt.get(), "endcall");
    return stmt;
  }

  void ParseSignature(Stmt* stmt) {
    stream_.ExpectOperator("(");
    while (!stream_.IsOperator(")")) {
      if (!stmt->parameters.empty()) stream_.ExpectOperator(",");
      stmt->parameters.push_back(OneName());
      if (stream_.SkipOperator("=")) {
        stmt->defaults.push_back(expressions_.ParseExpression());
      } else if (!stmt->defaults.empty()) {
        stream_.Refuse("a parameter without a default after one with it");
      }
    }
    stream_.ExpectOperator(")");
  }

  // The body of a macro, in which no `break` is one of a loop around it.
  void ParseOwnBody(Stmt* stmt, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    stmt->bodies.push_back(ParseBody({end}));
    loops_ = loops;
    stream_.ExpectName(end);
  }

  std::unique_ptr<Stmt> ParseWith(int line) {
    auto stmt = Make(StmtKind::kWith, line);
    while (!stream_.Is(TokenKind::kBlockEnd)) {
      if (!stmt->parameters.empty()) stream_.ExpectOperator(",");
      stmt->parameters.push_back(OneName());
      stream_.ExpectOperator("=");
      stmt->exprs.push_back(expressions_.ParseExpression());
    }
    stmt->bodies.push_back(ParseBody({"endwith"}));
    stream_.ExpectName("endwith");
    return stmt;
  }

  Target OneName() {
    Target target;
    target.line = stream_.line();
    target.name = stream_.ExpectName();
    for (std::string_view constant : {"true", "True", "false", "False", "none", "None"}) {
      if (target.name == constant) stream_.Refuse("cannot assign to '" + target.name + "'");
    }
    return target;
  }

  Target ParseTargets(bool with_field) {
    const NestingGuard guard(stream_, &depth_);
    Target first = OneTarget(with_field);
    if (!stream_.IsOperator(",")) return first;
    Target tuple;
    tuple.line = first.line;
    tuple.parts.push_back(std::move(first));
    while (stream_.SkipOperator(",")) {
      if (!stream_.Is(TokenKind::kName) && !stream_.IsOperator("(")) break;
      tuple.parts.push_back(OneTarget(with_field));
    }
    return tuple;
  }

  Target OneTarget(bool with_field) {
    if (stream_.SkipOperator("(")) {
      Target target = ParseTargets(false);
      stream_.ExpectOperator(")");
      return target;
    }
    Target target = OneName();
    if (with_field && stream_.SkipOperator(".")) target.field = stream_.ExpectName();
    return target;
  }

  TokenStream stream_;
  int depth_ = 0;
  int loops_ = 0;
  ExpressionParser expressions_;
};

}  // namespace

Block ParseTemplate(std::string_view source) { return StatementParser(source).Run(); }

}  // namespace keel::model::jinja
