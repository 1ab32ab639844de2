// The half of the Evaluator that computes values.
#include <cmath>

#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/text_form.h"

namespace keel::model::jinja {
namespace {

bool Compares(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return Equal(a, b);
    case Operator::kNotEqual:
      return !Equal(a, b);
    case Operator::kLess:
      return Less(a, b);
    case Operator::kGreater:
      return Less(b, a);
    case Operator::kLessEqual:
      return Less(a, b) || Equal(a, b);
    case Operator::kGreaterEqual:
      return Less(b, a) || Equal(a, b);
    case Operator::kIn:
      return Contains(b, a);
    case Operator::kNotIn:
      return !Contains(b, a);
    default:
      Fail("not a comparison");
  }
}

// The arguments of f(**dict).
void AddNamed(const Value& dict, Arguments* arguments) {
  if (!dict.Is(Kind::kDict)) Fail("'**' needs a dict, not a " + std::string(TypeName(dict)));
  arguments->kept.push_back(dict);
  for (const auto& [name, value] : dict.dict().entries) {
    if (!name.is_string()) Fail("'**' needs names, not a " + std::string(TypeName(name)));
    for (const auto& [there, unused] : arguments->named) {
      if (there == name.text()) Fail("the argument '" + name.text() + "' is given twice");
    }
    arguments->named.emplace_back(name.text(), value);
  }
}

}  // namespace

Value Evaluator::Eval(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return expr.value;
  if (expr.kind == ExprKind::kName) return EvalName(expr);
  const Nested nested(machine_);
  machine_.Step();
  return EvalNode(expr);
}

Value Evaluator::EvalNode(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kTuple:
    case ExprKind::kList: {
      ValueList items;
      items.reserve(expr.items.size());
      for (const ExprPtr& item : expr.items) items.push_back(Eval(*item));
      return Value::Sequence(expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple,
                             std::move(items));
    }
    case ExprKind::kDict:
      return EvalDict(expr);
    case ExprKind::kAttribute:
      return AttributeOf(Eval(*expr.items[0]), expr.name);
    case ExprKind::kElement: {
      const Value object = Eval(*expr.items[0]);
      const Value index = Eval(*expr.items[1]);
      // Characters are counted from the front, and keys that are no strings looked at one by one.
      const bool searched = object.is_string() || (object.Is(Kind::kDict) && !index.is_string());
      if (searched) machine_.Step(object.weight());
      return ElementOf(object, index);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr);
    case ExprKind::kCall:
      return EvalCall(expr);
    case ExprKind::kFilter:
      return ApplyFilter(expr, nullptr);
    case ExprKind::kTest:
      return EvalTest(expr);
    case ExprKind::kNot:
      return Value::Bool(!Eval(*expr.items[0]).truth());
    case ExprKind::kNegative:
      return Negated(Eval(*expr.items[0]));
    case ExprKind::kPositive: {
      const Value value = Eval(*expr.items[0]);
      if (value.is_integral()) return Value::Int(value.integer());
      if (!value.is_number()) Fail("a " + std::string(TypeName(value)) + " has no sign");
      return value;
    }
    case ExprKind::kBinary: {
      const Value left = Eval(*expr.items[0]);
      const Value right = Eval(*expr.items[1]);
      if (expr.sign_last && left.is_number() && std::signbit(left.real())) {
        return Negated(Arithmetic(machine_, expr.operators[0], Negated(left), right));
      }
      return Arithmetic(machine_, expr.operators[0], left, right);
    }
    case ExprKind::kConcat:
      return EvalConcat(expr);
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kAnd: {
      Value left = Eval(*expr.items[0]);
      return left.truth() ? Eval(*expr.items[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = Eval(*expr.items[0]);
      return left.truth() ? left : Eval(*expr.items[1]);
    }
    case ExprKind::kConditional:
      if (Eval(*expr.items[1]).truth()) return Eval(*expr.items[0]);
      if (expr.items[2] != nullptr) return Eval(*expr.items[2]);
      return Value::Undefined("the inline if has no else, and its condition is false");
    case ExprKind::kConst:
    case ExprKind::kName:
      break;
  }
  return EvalName(expr);
}

Value Evaluator::EvalName(const Expr& expr) {
  const Activation& activation = At(expr.slot);
  const auto index = static_cast<size_t>(expr.slot.index);
  if (activation.set[index]) return activation.values[index];
  return Value::MissingName("", expr.name);
}

Value Evaluator::EvalConcat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& item : expr.items) {
    const Value value = Eval(*item);
    machine_.Step(value.weight());
    AppendText(value, &text);
    if (text.size() > kMaxTextBytes) Fail("a string is too long");
  }
  machine_.Charge(text.size());
  return Value::String(std::move(text));
}

Value Evaluator::EvalCompare(const Expr& expr) {
  Value left = Eval(*expr.items[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = Eval(*expr.items[i + 1]);
    machine_.Step(left.weight() + right.weight());
    if (!Compares(expr.operators[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Evaluator::EvalDict(const Expr& expr) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    const Value key = Eval(*expr.items[i]);
    SetEntry(machine_, dict.get(), key, Eval(*expr.items[i + 1]));
  }
  return Value::FromDict(std::move(dict));
}

Value Evaluator::EvalSlice(const Expr& expr) {
  const Value object = Eval(*expr.items[0]);
  Value parts[3] = {Value::None(), Value::None(), Value::None()};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.items[i + 1] != nullptr) parts[i] = Eval(*expr.items[i + 1]);
  }
  machine_.Step(object.weight());
  Value slice = SliceOf(object, parts[0], parts[1], parts[2]);
  if (slice.is_string()) machine_.Charge(slice.text().size());
  return slice;
}

Arguments Evaluator::EvalArguments(const Expr& expr) {
  Arguments arguments;
  arguments.positional.reserve(expr.items.size() - 1);
  for (size_t i = 1; i < expr.items.size(); ++i) {
    arguments.positional.push_back(Eval(*expr.items[i]));
  }
  for (const auto& [name, expression] : expr.keywords) {
    const Value value = Eval(*expression);
    if (name.starts_with('*')) machine_.Step(value.weight());
    if (name == "*") {
      for (const Value& item : Iterate(value)) arguments.positional.push_back(item);
    } else if (name == "**") {
      AddNamed(value, &arguments);
    } else {
      arguments.named.emplace_back(name, value);
    }
  }
  return arguments;
}

Value Evaluator::EvalCall(const Expr& expr, const Value& caller) {
  const Value callee = Eval(*expr.items[0]);
  Arguments arguments = EvalArguments(expr);
  if (!caller.is_undefined()) arguments.named.emplace_back("caller", caller);
  machine_.line = expr.line;
  Value result;
  switch (callee.kind()) {
    case Kind::kMacro:
      return CallMacro(callee.macro(), std::move(arguments));
    case Kind::kFunction:
      result = callee.function().call(machine_, arguments);
      break;
    case Kind::kMethod: {
      machine_.Step(callee.self().weight() + arguments.weight());
      const MethodEntry& method = callee.method();
      if (method.call == nullptr) {
        Fail("the method '" + std::string(method.name) + "' of a " +
             std::string(TypeName(callee.self())) + " is not supported in chat templates");
      }
      result = method.call(machine_, callee.self(), arguments);
      break;
    }
    case Kind::kLoop: {
      const BoundArguments bound(arguments, "loop", {"/items"}, 1);
      if (!callee.loop().recurse) Fail("only a loop that is 'recursive' can be called");
      // A copy: the loop may end within.
      const auto recurse = callee.loop().recurse;
      return recurse(bound[0]);
    }
    case Kind::kUndefined:
      Fail(callee.note());
    default:
      Fail("a '" + std::string(TypeName(callee)) + "' cannot be called");
  }
  machine_.Made(result);
  return result;
}

Value Evaluator::ApplyFilter(const Expr& expr, const Value* input) {
  // The filters of a block begin at the one without an operand.
  const Value value = expr.items[0] == nullptr ? *input
                      : input != nullptr       ? ApplyFilter(*expr.items[0], input)
                                               : Eval(*expr.items[0]);
  if (expr.filter == nullptr) Fail("no filter is named '" + expr.name + "'");
  const Arguments arguments = EvalArguments(expr);
  machine_.line = expr.line;
  if (expr.filter->goes_over || value.is_string())
    machine_.Step(value.weight() + arguments.weight());
  Value result = expr.filter->apply(machine_, value, arguments);
  machine_.Made(result);
  return result;
}

Value Evaluator::EvalTest(const Expr& expr) {
  const Value value = Eval(*expr.items[0]);
  if (expr.test == nullptr) Fail("no test is named '" + expr.name + "'");
  return Value::Bool(expr.test->holds(machine_, value, EvalArguments(expr)));
}

}  // namespace keel::model::jinja
