// Runs a template's tree over one set of variables.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/byte_range.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/scope.h"

namespace keel::model::jinja {

// The variables of one run of the template or of a macro.
struct Activation {
  Activation(int slots, Activation* outer)
      : values(static_cast<size_t>(slots)), set(static_cast<size_t>(slots), false), around(outer) {}
  std::vector<Value> values;
  std::vector<bool> set;  // a variable that is not set reads as undefined
  Activation* around;
};

// What `loop` knows. Items come one at a time, as the condition of a loop may depend on what its
// body does; looking ahead takes as many more as it needs.
struct LoopState {
  std::function<bool(Value*)> pull;  // false: no more; null once the loop is over
  std::vector<Value> ahead;          // taken and not yet given, the next one last
  // loop(...) of a loop that is recursive; null of others, and once it is over.
  std::function<Value(const Value&)> recurse;
  Value previous, current;
  int64_t index0 = -1;
  int depth0 = 0;

  bool Next();
  const Value* PeekNext();
  int64_t Remaining();  // takes all that are left
};

class Evaluator {
 public:
  // `variables` are what the template's names mean; both must outlive the evaluator.
  Evaluator(const Program& program, const Dict& variables, Machine* machine)
      : program_(program), variables_(variables), machine_(*machine) {}

  // The text, and what lies within {% generation %}. Fails by Failure; call once.
  std::string Run(std::vector<ByteRange>* generated);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  void Start(const ScopeStart& start);
  Flow Exec(const Block& block);
  Flow ExecStmt(const Stmt& stmt);
  Flow ExecFor(const Stmt& stmt);
  Flow RunLoop(const Stmt& stmt, const Value& source, int depth);
  // The text of a loop within itself, over other items.
  Value Recurse(const Stmt& stmt, const Value& source, int depth);
  Flow ExecIf(const Stmt& stmt);
  Flow ExecWith(const Stmt& stmt);
  void ExecGeneration(const Stmt& stmt);
  // The text of a body; a break or continue in it is the loop's around.
  std::string Capture(const Stmt& stmt, Flow* flow);
  void Assign(const Target& target, const Value& value);
  void Write(std::string_view text);

  Value Eval(const Expr& expr);
  Value EvalNode(const Expr& expr);
  Value EvalName(const Expr& expr);
  Value EvalConcat(const Expr& expr);
  Value EvalCompare(const Expr& expr);
  Value EvalDict(const Expr& expr);
  Value EvalSlice(const Expr& expr);
  // `caller`: what a call block gives along; undefined where there is none.
  Value EvalCall(const Expr& expr, const Value& caller = Value());
  Value ApplyFilter(const Expr& expr, const Value* input);
  Value EvalTest(const Expr& expr);
  Arguments EvalArguments(const Expr& expr);
  Value CallMacro(const MacroValue& macro, Arguments arguments);

  Activation& At(const Slot& slot) const;
  void Set(const Slot& slot, Value value);

  const Program& program_;
  const Dict& variables_;
  Machine& machine_;
  Activation* now_ = nullptr;
  std::vector<std::unique_ptr<Activation>> kept_;  // those that a macro may still look into
  std::string root_;
  std::string* out_ = &root_;
  std::vector<ByteRange>* generated_ = nullptr;
};

// Arithmetic with Python's rules; `op` is one of those from kAdd to kPower.
Value Arithmetic(Machine& machine, Operator op, const Value& a, const Value& b);
Value Negated(const Value& value);

}  // namespace keel::model::jinja
