// Methods of lists, dicts, loops and numbers. A name that Python has and this table gives no
// function is refused when it is called.
#include <algorithm>

#include "model/chat_template/jinja/evaluator.h"

namespace keel::model::jinja {
namespace {

ValueList Keys(const Dict& dict) {
  ValueList keys;
  for (const auto& [key, value] : dict.entries) keys.push_back(key);
  return keys;
}

Value DictKeys(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "keys", {});
  return Value::View(Keys(self.dict()), "dict_keys");
}

Value DictValues(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "values", {});
  ValueList values;
  for (const auto& [key, value] : self.dict().entries) values.push_back(value);
  return Value::View(std::move(values), "dict_values");
}

Value DictItems(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "items", {});
  ValueList items;
  for (const auto& [key, value] : self.dict().entries) {
    items.push_back(Value::Sequence(Kind::kTuple, {key, value}));
  }
  return Value::View(std::move(items), "dict_items");
}

Value DictGet(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "get", {"/key", "/default"}, 1);
  if (const Value* found = self.dict().Find(bound[0])) return *found;
  return bound.has(1) ? bound[1] : Value::None();
}

Value Same(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "copy", {});
  return self;
}

Value ListIndex(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "index", {"/value"}, 1);
  const ValueList& items = self.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(items[i], bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  Fail("the value that index() looks for is not in the list");
}

Value ListCount(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "count", {"/value"}, 1);
  const ValueList& items = self.items();
  return Value::Int(std::count_if(items.begin(), items.end(),
                                  [&](const Value& item) { return Equal(item, bound[0]); }));
}

Value LoopCycle(Machine&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) Fail("loop.cycle() has nothing to cycle through");
  const auto index = static_cast<size_t>(std::max<int64_t>(self.loop().index0, 0));
  return arguments.positional[index % arguments.positional.size()];
}

Value LoopChanged(Machine& machine, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("loop.changed() takes no argument with a name");
  const ValueList& now = arguments.positional;
  const auto [last, is_first] = machine.last_changed.try_emplace(&self.loop(), self, now);
  if (is_first) return Value::Bool(true);
  ValueList& before = last->second.second;
  const bool same = std::equal(now.begin(), now.end(), before.begin(), before.end(), Equal);
  if (!same) before = now;
  return Value::Bool(!same);
}

constexpr MethodEntry kMethods[] = {
    {Kind::kDict, "keys", DictKeys},    {Kind::kDict, "values", DictValues},
    {Kind::kDict, "items", DictItems},  {Kind::kDict, "get", DictGet},
    {Kind::kDict, "copy", Same},        {Kind::kList, "copy", Same},
    {Kind::kList, "index", ListIndex},  {Kind::kList, "count", ListCount},
    {Kind::kTuple, "index", ListIndex}, {Kind::kTuple, "count", ListCount},
    {Kind::kLoop, "cycle", LoopCycle},  {Kind::kLoop, "changed", LoopChanged},
};

constexpr MethodEntry kUnsupported[] = {
    {Kind::kDict, "fromkeys", nullptr},
    {Kind::kRange, "index", nullptr},
    {Kind::kRange, "count", nullptr},
    {Kind::kInt, "bit_length", nullptr},
    {Kind::kInt, "to_bytes", nullptr},
    {Kind::kInt, "conjugate", nullptr},
    {Kind::kInt, "bit_count", nullptr},
    {Kind::kFloat, "is_integer", nullptr},
    {Kind::kFloat, "hex", nullptr},
    {Kind::kFloat, "conjugate", nullptr},
    {Kind::kFloat, "as_integer_ratio", nullptr},
};

}  // namespace

const MethodEntry* FindMethod(Kind kind, std::string_view name) {
  if (kind == Kind::kString) return FindTextMethod(name);
  // Most attributes are a message's keys: a dict's few methods are looked at alone.
  if (kind == Kind::kDict) {
    constexpr std::string_view kFirst = "kvigcf";
    if (name.empty() || kFirst.find(name[0]) == std::string_view::npos) return nullptr;
  }
  for (const MethodEntry& entry : kMethods) {
    if (entry.kind == kind && entry.name == name) return &entry;
  }
  for (const MethodEntry& entry : kUnsupported) {
    if (entry.kind == kind && entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
