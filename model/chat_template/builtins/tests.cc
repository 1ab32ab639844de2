// What stands after "is".
#include <cmath>

#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

// `parameter`: as Jinja names it, or with a slash where it takes no name.
const Value& Only(const Arguments& arguments, const char* name, const char* parameter) {
  const BoundArguments bound(arguments, name, {parameter}, 1);
  return bound[0];
}

template <Kind kind>
bool IsKind(Machine&, const Value& value, const Arguments&) {
  return value.Is(kind);
}

template <bool wanted>
bool IsDefined(Machine&, const Value& value, const Arguments&) {
  return !value.is_undefined() == wanted;
}

template <bool wanted>
bool IsTruth(Machine&, const Value& value, const Arguments&) {
  return value.Is(Kind::kBool) && value.boolean() == wanted;
}

bool IsNumber(Machine&, const Value& value, const Arguments&) { return value.is_number(); }

bool IsSequence(Machine&, const Value& value, const Arguments&) {
  return value.is_sequence() || value.is_string() || value.Is(Kind::kDict) || value.is_undefined();
}

bool IsIterable(Machine& machine, const Value& value, const Arguments& arguments) {
  return IsSequence(machine, value, arguments) || value.Is(Kind::kView) ||
         value.Is(Kind::kGenerator) || value.Is(Kind::kLoop);
}

bool IsCallable(Machine&, const Value& value, const Arguments&) {
  return value.Is(Kind::kFunction) || value.Is(Kind::kMethod) || value.Is(Kind::kMacro) ||
         value.is_undefined();
}

bool IsEscaped(Machine&, const Value& value, const Arguments&) { return value.is_safe(); }

// The one argument of a comparison, which goes over both.
const Value& Compared(Machine& machine, const Value& value, const Arguments& arguments,
                      const char* name) {
  const Value& other = Only(arguments, name, "/value");
  machine.Step(value.weight() + other.weight());
  return other;
}

int64_t Whole(const Value& value, const char* test) {
  if (!value.is_integral()) {
    if (value.is_undefined()) Fail(value.note());
    Fail(std::string("test '") + test + "' needs an integer, not a " +
         std::string(TypeName(value)));
  }
  return value.integer();
}

bool IsOdd(Machine&, const Value& value, const Arguments&) {
  if (value.Is(Kind::kFloat)) return std::abs(std::fmod(value.real(), 2)) == 1;
  return Whole(value, "odd") % 2 != 0;
}
bool IsEven(Machine&, const Value& value, const Arguments&) {
  if (value.Is(Kind::kFloat)) return std::fmod(value.real(), 2) == 0;
  return Whole(value, "even") % 2 == 0;
}

bool IsDivisible(Machine& machine, const Value& value, const Arguments& arguments) {
  const Value& by = Only(arguments, "divisibleby", "num");
  return Equal(Arithmetic(machine, Operator::kModulo, value, by), Value::Int(0));
}

bool IsEqual(Machine& machine, const Value& value, const Arguments& arguments) {
  return Equal(value, Compared(machine, value, arguments, "eq"));
}
bool IsNotEqual(Machine& machine, const Value& value, const Arguments& arguments) {
  return !Equal(value, Compared(machine, value, arguments, "ne"));
}
bool IsLess(Machine& machine, const Value& value, const Arguments& arguments) {
  return Less(value, Compared(machine, value, arguments, "lt"));
}
bool IsGreater(Machine& machine, const Value& value, const Arguments& arguments) {
  return Less(Compared(machine, value, arguments, "gt"), value);
}
bool IsLessEqual(Machine& machine, const Value& value, const Arguments& arguments) {
  const Value& other = Compared(machine, value, arguments, "le");
  return Less(value, other) || Equal(value, other);
}
bool IsGreaterEqual(Machine& machine, const Value& value, const Arguments& arguments) {
  const Value& other = Compared(machine, value, arguments, "ge");
  return Less(other, value) || Equal(value, other);
}

bool IsIn(Machine& machine, const Value& value, const Arguments& arguments) {
  const Value& container = Only(arguments, "in", "seq");
  machine.Step(container.weight());
  return Contains(container, value);
}

bool IsSame(Machine&, const Value& value, const Arguments& arguments) {
  const Value& other = Only(arguments, "sameas", "other");
  if (value.kind() != other.kind()) return false;
  if (value.is_none() || value.Is(Kind::kBool)) return Equal(value, other);
  if (value.is_number() || value.is_string()) {
    Fail("test 'sameas' of numbers and strings is not supported: compare them by '=='");
  }
  return value.SameObject(other);
}

template <bool upper>
bool HasCase(Machine& machine, const Value& value, const Arguments&) {
  machine.Step(value.weight());
  return IsOfCase(ToText(value), upper);
}

void NeedHash(const Value& value) {
  if (!HasHash(value)) Fail("a " + std::string(TypeName(value)) + " names nothing: it has no hash");
}

bool NamesFilter(Machine&, const Value& value, const Arguments&) {
  NeedHash(value);
  return value.is_string() && FindFilter(value.text()) != nullptr;
}
bool NamesTest(Machine&, const Value& value, const Arguments&) {
  NeedHash(value);
  return value.is_string() && FindTest(value.text()) != nullptr;
}

// A test that has no argument: with one it is an error.
template <bool (*holds)(Machine&, const Value&, const Arguments&)>
bool Alone(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments none(arguments, "the test", {});
  return holds(machine, value, arguments);
}

constexpr TestEntry kTests[] = {
    {"defined", Alone<IsDefined<true>>},
    {"undefined", Alone<IsDefined<false>>},
    {"none", Alone<IsKind<Kind::kNone>>},
    {"string", Alone<IsKind<Kind::kString>>},
    {"mapping", Alone<IsKind<Kind::kDict>>},
    {"boolean", Alone<IsKind<Kind::kBool>>},
    {"integer", Alone<IsKind<Kind::kInt>>},
    {"float", Alone<IsKind<Kind::kFloat>>},
    {"true", Alone<IsTruth<true>>},
    {"false", Alone<IsTruth<false>>},
    {"number", Alone<IsNumber>},
    {"sequence", Alone<IsSequence>},
    {"iterable", Alone<IsIterable>},
    {"callable", Alone<IsCallable>},
    {"escaped", Alone<IsEscaped>},
    {"odd", Alone<IsOdd>},
    {"even", Alone<IsEven>},
    {"divisibleby", IsDivisible},
    {"in", IsIn},
    {"sameas", IsSame},
    {"lower", Alone<HasCase<false>>},
    {"upper", Alone<HasCase<true>>},
    {"filter", Alone<NamesFilter>},
    {"test", Alone<NamesTest>},
    {"eq", IsEqual},
    {"equalto", IsEqual},
    {"==", IsEqual},
    {"ne", IsNotEqual},
    {"!=", IsNotEqual},
    {"lt", IsLess},
    {"lessthan", IsLess},
    {"<", IsLess},
    {"le", IsLessEqual},
    {"<=", IsLessEqual},
    {"gt", IsGreater},
    {"greaterthan", IsGreater},
    {">", IsGreater},
    {"ge", IsGreaterEqual},
    {">=", IsGreaterEqual},
};

}  // namespace

const TestEntry* FindTest(std::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
