// Operators with Python's rules.
#include <cmath>

#include "common/text.h"
#include "model/chat_template/jinja/evaluator.h"

namespace keel::model::jinja {
namespace {

[[noreturn]] void Mismatch(const char* symbol, const Value& a, const Value& b) {
  Fail(std::string("'") + symbol + "' between a '" + std::string(TypeName(a)) + "' and a '" +
       std::string(TypeName(b)) + "'");
}

[[noreturn]] void TooLarge() { Fail("an integer is beyond 64 bits"); }

int64_t FloorDivide(int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) TooLarge();
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

struct Division {
  double whole, rest;
};

// Python's divmod of two floats, in its order of operations.
Division FloorDivide(double a, double b) {
  Division d{0, std::fmod(a, b)};
  d.whole = (a - d.rest) / b;
  if (d.rest == 0) {
    d.rest = std::copysign(0.0, b);
  } else if ((b < 0) != (d.rest < 0)) {
    d.rest += b;
    d.whole -= 1;
  }
  if (d.whole == 0) {
    d.whole = std::copysign(0.0, a / b);
  } else {
    const double below = std::floor(d.whole);
    d.whole = d.whole - below > 0.5 ? below + 1 : below;
  }
  return d;
}

Value Power(const Value& a, const Value& b) {
  if (!a.is_integral() || !b.is_integral() || b.integer() < 0) {
    if (a.real() == 0 && b.real() < 0) Fail("0 to a negative power");
    const double power = std::pow(a.real(), b.real());
    if (std::isnan(power) && !std::isnan(a.real()) && !std::isnan(b.real())) {
      Fail("a negative number to a fractional power is complex");
    }
    if (std::isinf(power) && !std::isinf(a.real()) && !std::isinf(b.real())) {
      Fail("the result of '**' is too large");
    }
    return Value::Float(power);
  }
  int64_t result = 1;
  int64_t base = a.integer();
  for (int64_t left = b.integer(); left > 0; left >>= 1) {
    if ((left & 1) != 0 && __builtin_mul_overflow(result, base, &result)) TooLarge();
    if (left > 1 && __builtin_mul_overflow(base, base, &base)) TooLarge();
  }
  return Value::Int(result);
}

Value Integers(Operator op, const Value& x, const Value& y) {
  const int64_t a = x.integer();
  const int64_t b = y.integer();
  int64_t result = 0;
  bool over = false;
  switch (op) {
    case Operator::kAdd:
      over = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      over = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      over = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kPower:
      return Power(x, y);
    default:
      if (b == 0) Fail("division by zero");
      if (op == Operator::kDivide) {
        return Value::Float(static_cast<double>(static_cast<long double>(a) / b));
      }
      result = FloorDivide(a, b);
      if (op == Operator::kModulo) result = a - result * b;
  }
  if (over) TooLarge();
  return Value::Int(result);
}

Value Floats(Operator op, const Value& x, const Value& y) {
  const double a = x.real();
  const double b = y.real();
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSubtract:
      return Value::Float(a - b);
    case Operator::kMultiply:
      return Value::Float(a * b);
    case Operator::kPower:
      return Power(x, y);
    default:
      if (b == 0) Fail("division by zero");
      if (op == Operator::kDivide) return Value::Float(a / b);
      const Division division = FloorDivide(a, b);
      return Value::Float(op == Operator::kModulo ? division.rest : division.whole);
  }
}

Value Added(Machine& machine, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    machine.Charge(a.text().size() + b.text().size());
    if (a.is_safe() == b.is_safe()) return Value::String(a.text() + b.text(), a.is_safe());
    // Markup takes a plain string in escaped.
    return Value::String((a.is_safe() ? a.text() : EscapedHtml(a.text())) +
                             (b.is_safe() ? b.text() : EscapedHtml(b.text())),
                         true);
  }
  if (a.kind() != b.kind() || !(a.Is(Kind::kList) || a.Is(Kind::kTuple))) Mismatch("+", a, b);
  machine.Step(a.weight() + b.weight());
  ValueList items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return Value::Sequence(a.kind(), std::move(items));
}

Value Repeated(Machine& machine, const Value& a, const Value& b) {
  if (!b.is_integral()) Mismatch("*", a, b);
  const int64_t count = std::max<int64_t>(b.integer(), 0);
  const size_t size = a.is_string() ? a.text().size() : a.items().size();
  if (size > 0 && count > static_cast<int64_t>(kMaxTextBytes / size)) Fail("'*' makes too much");
  if (a.is_string()) {
    machine.Charge(size * static_cast<size_t>(count));
    std::string text;
    for (int64_t i = 0; i < count && size > 0; ++i) text += a.text();
    return Value::String(std::move(text), a.is_safe());
  }
  if (size > 0) machine.Step(count * a.weight());
  ValueList items;
  for (int64_t i = 0; i < count && size > 0; ++i) {
    items.insert(items.end(), a.items().begin(), a.items().end());
  }
  return Value::Sequence(a.kind(), std::move(items));
}

bool Repeats(const Value& value) {
  return value.is_string() || value.Is(Kind::kList) || value.Is(Kind::kTuple);
}

}  // namespace

Value Arithmetic(Machine& machine, Operator op, const Value& a, const Value& b) {
  static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  if (a.is_undefined()) Fail(a.note());
  if (op == Operator::kModulo && a.is_string()) return FormatPercent(machine, a, b);
  if (b.is_undefined()) Fail(b.note());
  if (a.is_integral() && b.is_integral()) return Integers(op, a, b);
  if (a.is_number() && b.is_number()) return Floats(op, a, b);
  if (op == Operator::kAdd) return Added(machine, a, b);
  if (op == Operator::kMultiply && Repeats(a)) return Repeated(machine, a, b);
  if (op == Operator::kMultiply && Repeats(b)) return Repeated(machine, b, a);
  Mismatch(kSymbols[static_cast<size_t>(op)], a, b);
}

Value Negated(const Value& value) {
  if (value.is_undefined()) Fail(value.note());
  if (value.Is(Kind::kFloat)) return Value::Float(-value.real());
  if (!value.is_integral()) Fail("a " + std::string(TypeName(value)) + " has no negative");
  if (value.integer() == INT64_MIN) TooLarge();
  return Value::Int(-value.integer());
}

}  // namespace keel::model::jinja
