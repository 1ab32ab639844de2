// Value: what an expression of a template can be, with Python's rules for truth, equality and
// order. Copies share their lists and dicts, which nothing changes after they were made; only a
// namespace changes, and a generator is used up.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/json.h"

namespace keel::model::jinja {

// What a template did that it may not: unwinds to ChatTemplate, which makes a Status of it, with
// the template's name and the line. Never leaves this folder.
struct Failure {
  std::string message;
  int line = 0;  // 0: the line that the interpreter is at
};

[[noreturn]] void Fail(std::string message);

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,      // range(): a sequence that is no list
  kView,       // dict.items(), keys(), values(): iterable, with a length, without elements
  kGenerator,  // what map, select and their like give: iterable once, without a length
  kDict,
  kNamespace,
  kFunction,  // a global
  kMethod,    // "abc".strip
  kMacro,
  kLoop,
  kSelf,  // `self`: the template's blocks, of which there are none
};

class Value;
struct Dict;
struct LoopState;
struct MacroValue;
struct MethodEntry;
struct FunctionEntry;
using ValueList = std::vector<Value>;

class Value {
 public:
  Value() = default;
  static Value Undefined(std::string why);
  // An attribute that an object of `type` (a literal) does not have; a name that means nothing
  // where `type` is "". Worded when it is asked for, as most are only asked whether they are there.
  static Value MissingName(std::string_view type, std::string name);
  static Value None() { return Value(Kind::kNone); }
  static Value Self() { return Value(Kind::kSelf); }
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  // `safe`: jinja's Markup, which escapes a plain string that is added to it.
  static Value String(std::string text, bool safe = false);
  // kind: kList, kTuple or kGenerator.
  static Value Sequence(Kind kind, ValueList items);
  // What groupby makes of a group: a tuple of the two, with names for them.
  static Value Group(Value grouper, Value list);
  static Value Range(ValueList items, int64_t start, int64_t stop, int64_t step);
  // `name`: "dict_items".
  static Value View(ValueList items, std::string name);
  static Value FromDict(std::shared_ptr<Dict> dict);
  static Value Namespace(std::shared_ptr<Dict> fields);
  static Value Function(const FunctionEntry* entry);
  static Value Method(const MethodEntry* entry, Value self);
  static Value Macro(std::shared_ptr<const MacroValue> macro);
  // `over`: what the loop goes over.
  static Value Loop(std::shared_ptr<LoopState> loop, const Value& over);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_safe() const { return safe_; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_group() const;
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  // A list, a tuple or a range: what can be indexed.
  bool is_sequence() const {
    return kind_ == Kind::kList || kind_ == Kind::kTuple || kind_ == Kind::kRange;
  }

  // Each needs the kind it is named after; a bool is an int, too, and both are floats.
  bool boolean() const { return number_.integer != 0; }
  int64_t integer() const { return number_.integer; }
  double real() const;
  const std::string& text() const;
  // Of sequences, views and generators.
  const ValueList& items() const;
  // Of a range: its start, stop and step.
  const std::array<int64_t, 3>& bounds() const;
  // Of a generator: how many items are used up.
  size_t* consumed() const;
  // Of a generator: fails when the items that could be made are used up, as those after them could
  // not.
  void set_failure(Failure failure) const;
  const Failure* failure() const;
  // Why an Undefined is one; how a range, a view is printed.
  std::string note() const;
  Dict& dict() const;  // of a dict or a namespace
  LoopState& loop() const;
  const MacroValue& macro() const;
  const FunctionEntry& function() const;
  const MethodEntry& method() const;
  const Value& self() const;  // of a method
  bool SameObject(const Value& other) const { return object_ == other.object_; }

  // How many values are within this one, itself included, and how long its text is: what it costs
  // to go over it.
  uint32_t weight() const { return weight_; }

  // Python's bool(): empty strings and containers, zero, none and undefined are false.
  bool truth() const;

 private:
  struct Items;
  explicit Value(Kind kind) : kind_(kind) {}
  // Takes an element's weight and nesting into account; fails beyond the limits.
  void Hold(const Value& element);

  union Number {
    int64_t integer;
    double real;
  };
  Kind kind_ = Kind::kUndefined;
  bool safe_ = false;
  uint16_t depth_ = 0;
  uint32_t weight_ = 1;
  Number number_{0};
  std::shared_ptr<void> object_;
};

// Keys keep the order in which they came. A key is what Python can hash.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;

  const Value* Find(std::string_view key) const;
  // Fails when `key` is a list or a dict.
  const Value* Find(const Value& key) const;
  void Set(const Value& key, Value value);

 private:
  // Of string keys, once there are many.
  mutable std::unordered_map<std::string, size_t> index_;
  mutable size_t indexed_ = 0;
};

Value FromJson(const Json& json);

// "dict", "str", "NoneType" as Python's error messages have it.
std::string_view TypeName(const Value& value);

// Whether it can be the key of a dict.
bool HasHash(const Value& value);
bool Equal(const Value& a, const Value& b);
// a < b; fails for what has no order.
bool Less(const Value& a, const Value& b);
// `item in container`.
bool Contains(const Value& container, const Value& item);

// The items that a loop over `value` has: of a list, a dict's keys, a string's characters. Uses a
// generator up.
ValueList Iterate(const Value& value);
// len(); fails for what has none.
int64_t Length(const Value& value);

}  // namespace keel::model::jinja
