// The tree of a template, as the parser makes it and ResolveNames completes it. Immutable after
// that: many threads may render from it at once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/chat_template/jinja/value.h"

namespace keel::model::jinja {

struct FilterEntry;
struct TestEntry;

// A variable: the `index`th of the activation that is `hops` functions out from the running one.
struct Slot {
  int hops = 0;
  int index = -1;
};

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

enum class ExprKind {
  kConst,        // value
  kName,         // name, slot
  kTuple,        // items
  kList,         // items
  kDict,         // items: key, value, key, value ...
  kAttribute,    // items[0].name
  kElement,      // items[0][items[1]]
  kSlice,        // items[0][items[1]:items[2]:items[3]]; each of the last three may be null
  kCall,         // items[0](items[1..], keywords)
  kFilter,       // items[0] | name(items[1..], keywords); items[0] null: what a block holds
  kTest,         // items[0] is name(items[1..], keywords)
  kNot,          // items[0]
  kNegative,     // items[0]
  kPositive,     // items[0]
  kBinary,       // items[0] operators[0] items[1]
  kConcat,       // items, joined as text
  kCompare,      // items[0] operators[0] items[1] operators[1] items[2] ...
  kAnd,          // items[0], items[1]
  kOr,           // items[0], items[1]
  kConditional,  // items[0] if items[1] else items[2], which may be null
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;  // of the tree below, as far as it is sealed
  Value value;
  std::string name;
  Slot slot;
  std::vector<ExprPtr> items;
  // Of a call. "*" names a list of more arguments, "**" a dict of them.
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<Operator> operators;
  // Of '**': the sign of its left operand is taken last. Jinja writes a constant that it has
  // computed, "-2", into Python's "-2 ** x".
  bool sign_last = false;
  const FilterEntry* filter = nullptr;  // null: no filter has this name, which fails when it runs
  const TestEntry* test = nullptr;
};

// What `set` and `for` write to: a name, a field of a namespace, or several.
struct Target {
  std::string name;
  std::string field;          // not "": name.field
  std::vector<Target> parts;  // not empty: a tuple, and neither of the above
  Slot slot;
  int line = 0;
};

// How a variable of a scope starts when the scope is entered.
struct SlotStart {
  enum class From { kContext, kSlot, kUndefined };
  int index = -1;
  From from = From::kUndefined;
  std::string name;  // kContext
  Slot slot;         // kSlot
};
using ScopeStart = std::vector<SlotStart>;

enum class StmtKind {
  kText,         // text
  kPrint,        // exprs, one behind the other
  kIf,           // exprs: the conditions; bodies: theirs, and the else's when there is one more
  kFor,          // target in exprs[0], if exprs[1] (or null); bodies: loop, else
  kSet,          // target = exprs[0]
  kSetBlock,     // target = bodies[0], through exprs[0] (or null)
  kMacro,        // text(parameters), target; bodies[0]
  kCallBlock,    // exprs[0], a call; bodies[0] and parameters: the macro that is its `caller`
  kFilterBlock,  // exprs[0] over bodies[0]
  kWith,         // parameters' names = exprs; bodies[0]
  kGeneration,   // bodies[0]: what the assistant said
  kLoad,         // exprs[0] names a template, text is the tag, parameters what it would set
  kBreak,
  kContinue,
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Block> bodies;
  Target target;
  std::vector<Target> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters of a macro
  // Of each body, and of a for's condition after its bodies.
  std::vector<ScopeStart> starts;
  Slot loop;               // kFor: index -1 where its body does not ask for `loop`
  bool may_miss = false;   // kLoad: ignore missing
  bool recursive = false;  // kFor: loop(...) runs it over other items
  // kFor: the variables of its scopes, from the first to before the last.
  int first_slot = 0;
  int last_slot = 0;
  int slots = 0;      // kMacro and kCallBlock: how many their activation has
  bool kept = false;  // kMacro and kCallBlock: a macro within it may outlive a call
  // kMacro and kCallBlock: what else it may be called with; index -1 where its body does not ask.
  Slot varargs;
  Slot kwargs;
  Slot caller;
};

// A macro, and the variables around it.
struct Activation;
struct MacroValue {
  const Stmt* definition;
  Activation* around;
};

}  // namespace keel::model::jinja
