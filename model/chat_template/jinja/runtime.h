// What filters, tests, methods and global functions are called with, and the tables of them.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/value.h"

namespace keel::model::jinja {

using Clock = std::function<std::chrono::system_clock::time_point()>;

// One rendering: what it has used up, and what it has to give back. One thread's.
struct Machine {
  Clock clock;
  int line = 0;  // of the template, for messages
  int64_t steps = 0;
  int64_t bytes = 0;
  int depth = 0;  // evaluations within one another
  // Namespaces may hold themselves: they are emptied at the end.
  std::vector<std::shared_ptr<Dict>> namespaces;
  // What each loop's changed() was last called with, beside the loop, which it may hold.
  std::map<const LoopState*, std::pair<Value, ValueList>> last_changed;

  ~Machine();
  // Fails beyond kMaxSteps.
  void Step(int64_t count = 1) {
    steps += count;
    if (steps > kMaxSteps) Fail("the template takes too many steps");
  }
  // A string of so many bytes is about to be made; fails beyond the limits.
  void Charge(size_t bytes);
  // A value was made: counts the bytes of a string and the elements of a list.
  void Made(const Value& value);
};

// One evaluation within another; fails beyond kMaxDepth.
class Nested {
 public:
  explicit Nested(Machine& machine) : depth_(machine.depth) {
    if (depth_ >= kMaxDepth) Fail("the template is nested too deep, or a macro calls itself");
    ++depth_;
  }
  ~Nested() { --depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  int& depth_;
};

struct Arguments {
  ValueList positional;
  std::vector<std::pair<std::string_view, Value>> named;
  ValueList kept;  // the dicts of f(**dict), which the names are in

  // Of all of them: what it costs to go over what is given.
  int64_t weight() const;
};

// Sets an entry; counts the others that are looked at for it.
void SetEntry(Machine& machine, Dict* dict, const Value& key, Value value);

// The arguments of one call in the order of the parameters' names.
class BoundArguments {
 public:
  // At most four names, of which one that begins with a slash is for messages alone: nobody gives
  // that argument by its name; `what` must outlive this. Fails, with `what` in front, for one that
  // is too many, has no such name or, among the first `required`, is missing.
  BoundArguments(const Arguments& arguments, std::string_view what,
                 std::initializer_list<std::string_view> names, size_t required = 0);

  bool has(size_t index) const { return values_[index] != nullptr; }
  const Value& operator[](size_t index) const { return *values_[index]; }
  bool Truth(size_t index, bool otherwise) const;
  // An integer; fails for anything else. None is as absent.
  int64_t Integer(size_t index, int64_t otherwise) const;
  // An integer or a float; fails for anything else. None is as absent.
  Value Number(size_t index, int64_t otherwise) const;
  // The text of a string; fails for anything else.
  std::string_view Text(size_t index, std::string_view otherwise) const;

 private:
  [[noreturn]] void Refuse(size_t index, std::string_view expected) const;

  static constexpr size_t kMost = 4;
  std::string_view what_;
  std::array<std::string_view, kMost> names_{};
  std::array<const Value*, kMost> values_{};
};

struct FilterEntry {
  std::string_view name;
  Value (*apply)(Machine&, const Value&, const Arguments&);
  bool goes_over = true;  // what it is applied to, and its arguments; else it looks at them alone
};

struct TestEntry {
  std::string_view name;
  bool (*holds)(Machine&, const Value&, const Arguments&);
};

struct FunctionEntry {
  std::string_view name;
  Value (*call)(Machine&, const Arguments&);
};

struct MethodEntry {
  Kind kind;
  std::string_view name;
  Value (*call)(Machine&, const Value& self, const Arguments&);  // null: not supported here
};

// nullptr where there is none.
const FilterEntry* FindFilter(std::string_view name);
const TestEntry* FindTest(std::string_view name);
const FunctionEntry* FindFunction(std::string_view name);
const MethodEntry* FindMethod(Kind kind, std::string_view name);

// Filters and methods are in several files.
const MethodEntry* FindTextMethod(std::string_view name);
const FilterEntry* FindTextFilter(std::string_view name);
const FilterEntry* FindSequenceFilter(std::string_view name);
const FilterEntry* FindLayoutFilter(std::string_view name);
const FilterEntry* FindWordFilter(std::string_view name);
const FilterEntry* FindHtmlFilter(std::string_view name);

// object.name: a method or a field, else a dict's element; undefined where there is none.
Value AttributeOf(const Value& object, std::string_view name);
// object[index]: an element, else a method; undefined where there is none.
Value ElementOf(const Value& object, const Value& index);
// object[start:stop:step]; each may be none. Fails where there is no such slice.
Value SliceOf(const Value& object, const Value& start, const Value& stop, const Value& step);

// "%" of a string: printf's conversions as Python has them.
Value FormatPercent(Machine& machine, const Value& format, const Value& arguments);
// str.format.
Value FormatBraces(Machine& machine, const Value& format, const Arguments& arguments);

}  // namespace keel::model::jinja
