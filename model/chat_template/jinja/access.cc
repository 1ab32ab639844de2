// Attributes, elements and slices, as jinja's sandbox gives them out.
#include <algorithm>
#include <array>

#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

// What would change a list or a dict that the caller shares.
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

template <size_t n>
bool Among(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value Missing(const Value& object, std::string_view name) {
  return Value::MissingName(TypeName(object), std::string(name));
}

Value LoopAttribute(const Value& object, std::string_view name) {
  LoopState& loop = object.loop();
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(loop.PeekNext() == nullptr);
  if (name == "length") return Value::Int(loop.index0 + 1 + loop.Remaining());
  if (name == "revindex") return Value::Int(loop.Remaining() + 1);
  if (name == "revindex0") return Value::Int(loop.Remaining());
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "previtem") {
    return loop.index0 == 0 ? Value::Undefined("there is no previous item") : loop.previous;
  }
  if (name == "nextitem") {
    const Value* next = loop.PeekNext();
    return next == nullptr ? Value::Undefined("there is no next item") : *next;
  }
  if (const MethodEntry* method = FindMethod(Kind::kLoop, name)) {
    return Value::Method(method, object);
  }
  return Missing(object, name);
}

Value MacroAttribute(const Value& object, std::string_view name) {
  const Stmt& macro = *object.macro().definition;
  if (name == "name") {
    return macro.target.name.empty() ? Value::None() : Value::String(macro.target.name);
  }
  if (name == "arguments") {
    ValueList names;
    for (const Target& one : macro.parameters) names.push_back(Value::String(one.name));
    return Value::Sequence(Kind::kTuple, std::move(names));
  }
  if (name == "catch_varargs") return Value::Bool(macro.varargs.index >= 0);
  if (name == "catch_kwargs") return Value::Bool(macro.kwargs.index >= 0);
  if (name == "caller") return Value::Bool(macro.caller.index >= 0);
  if (name == "explicit_caller") {
    return Value::Bool(std::any_of(macro.parameters.begin(), macro.parameters.end(),
                                   [](const Target& one) { return one.name == "caller"; }));
  }
  return Missing(object, name);
}

// int.real and its like.
bool NumberAttribute(const Value& object, std::string_view name, Value* found) {
  const bool whole = object.is_integral();
  if (name == "real" || (whole && name == "numerator")) {
    *found = whole ? Value::Int(object.integer()) : object;
  } else if (name == "imag") {
    *found = whole ? Value::Int(0) : Value::Float(0);
  } else if (whole && name == "denominator") {
    *found = Value::Int(1);
  } else {
    return false;
  }
  return true;
}

// A method, a field: what Python's getattr finds. Nothing: false.
bool FindAttribute(const Value& object, std::string_view name, Value* found) {
  if ((object.Is(Kind::kList) && Among(kListChanges, name)) ||
      (object.Is(Kind::kDict) && Among(kDictChanges, name))) {
    *found = Value::Undefined("access to '" + std::string(name) + "' of a " +
                              std::string(TypeName(object)) +
                              " is unsafe: templates cannot change what they are given");
    return true;
  }
  if (object.Is(Kind::kNamespace)) {
    const Value* field = object.dict().Find(name);
    if (field != nullptr) *found = *field;
    return field != nullptr;
  }
  if (object.is_group() && (name == "grouper" || name == "list")) {
    *found = object.items()[name == "list" ? 1 : 0];
    return true;
  }
  if (object.is_number() && NumberAttribute(object, name, found)) return true;
  const MethodEntry* method = FindMethod(object.Is(Kind::kBool) ? Kind::kInt : object.kind(), name);
  if (method != nullptr) *found = Value::Method(method, object);
  return method != nullptr;
}

// Python's slice.indices: where a slice begins, how it goes and how many items it has.
struct SliceRange {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t count;
};

SliceRange Indices(int64_t length, const Value& start, const Value& stop, const Value& step) {
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) Fail("the step of a slice is 0");
  const int64_t low = by < 0 ? -1 : 0;
  const int64_t high = by < 0 ? length - 1 : length;
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t at = value.integer();
    return at < 0 ? std::max(at + length, low) : std::min(at, high);
  };
  const int64_t begin = place(start, by < 0 ? high : low);
  const int64_t end = place(stop, by < 0 ? low : high);
  if (by > 0 ? begin >= end : begin <= end) return {begin, end, by, 0};
  const uint64_t span = static_cast<uint64_t>(by > 0 ? end - begin : begin - end);
  const uint64_t stride =
      by > 0 ? static_cast<uint64_t>(by) : uint64_t{0} - static_cast<uint64_t>(by);
  return {begin, end, by, static_cast<int64_t>((span - 1) / stride + 1)};
}

}  // namespace

Value AttributeOf(const Value& object, std::string_view name) {
  if (object.is_undefined()) Fail(object.note());
  if (object.Is(Kind::kLoop)) return LoopAttribute(object, name);
  if (object.Is(Kind::kMacro)) return MacroAttribute(object, name);
  Value found;
  if (FindAttribute(object, name, &found)) return found;
  if (object.Is(Kind::kDict)) {
    if (const Value* element = object.dict().Find(name)) return *element;
  }
  return Missing(object, name);
}

Value ElementOf(const Value& object, const Value& index) {
  if (object.is_undefined()) Fail(object.note());
  if (object.Is(Kind::kDict) && !index.Is(Kind::kList) && !index.Is(Kind::kDict)) {
    if (const Value* element = object.dict().Find(index)) return *element;
  }
  if (index.is_integral() && (object.is_sequence() || object.is_string())) {
    const int64_t length = Length(object);
    const int64_t at = index.integer() < 0 ? index.integer() + length : index.integer();
    if (at >= 0 && at < length) {
      if (object.is_sequence()) return object.items()[static_cast<size_t>(at)];
      return SliceOf(object, Value::Int(at), Value::Int(at + 1), Value::None());
    }
  }
  if (index.is_string()) {
    if (object.Is(Kind::kLoop)) return LoopAttribute(object, index.text());
    if (object.Is(Kind::kMacro)) return MacroAttribute(object, index.text());
    Value found;
    if (FindAttribute(object, index.text(), &found)) return found;
    return Missing(object, index.text());
  }
  return Value::Undefined("'" + std::string(TypeName(object)) + " object' has no such element");
}

Value SliceOf(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) Fail(object.note());
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_none() && !part->is_integral()) {
      Fail("a slice needs integers, not a " + std::string(TypeName(*part)));
    }
  }
  if (object.is_string()) {
    if (IsAscii(object.text())) {
      const SliceRange range =
          Indices(static_cast<int64_t>(object.text().size()), start, stop, step);
      if (range.count == 0) return Value::String("", object.is_safe());
      if (range.step == 1) {
        return Value::String(object.text().substr(static_cast<size_t>(range.start),
                                                  static_cast<size_t>(range.count)),
                             object.is_safe());
      }
    }
    const std::u32string all = ToCharacters(object.text());
    const SliceRange range = Indices(static_cast<int64_t>(all.size()), start, stop, step);
    std::string text;
    for (int64_t i = 0; i < range.count; ++i) {
      AppendCharacter(all[static_cast<size_t>(range.start + i * range.step)], &text);
    }
    return Value::String(std::move(text), object.is_safe());
  }
  if (!object.is_sequence()) {
    Fail("a '" + std::string(TypeName(object)) + "' has no slices");
  }
  const ValueList& all = object.items();
  const SliceRange range = Indices(static_cast<int64_t>(all.size()), start, stop, step);
  ValueList items;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(all[static_cast<size_t>(range.start + i * range.step)]);
  }
  if (object.Is(Kind::kRange)) {
    const auto& [first, unused, by] = object.bounds();
    const auto at = [&](int64_t index, int64_t from) {
      int64_t place = 0;
      if (__builtin_mul_overflow(index, by, &place) || __builtin_add_overflow(place, from, &place))
        Fail("the slice of a range ends beyond 64 bits");
      return place;
    };
    return Value::Range(std::move(items), at(range.start, first), at(range.stop, first),
                        at(range.step, 0));
  }
  return Value::Sequence(object.kind(), std::move(items));
}

}  // namespace keel::model::jinja
