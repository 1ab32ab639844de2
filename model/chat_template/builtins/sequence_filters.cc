// Filters of lists, dicts and what else has items.
#include <algorithm>
#include <charconv>

#include "common/text.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

// `attribute` of jinja's filters: "a.b.0", or a number; absent: the item itself.
class Getter {
 public:
  Getter(const Value* attribute, const Value* otherwise = nullptr) : otherwise_(otherwise) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_string()) {
      path_.push_back(*attribute);
      return;
    }
    for (std::string_view part : SplitAt(attribute->text(), ".", -1, false)) {
      const bool digits = !part.empty() && std::all_of(part.begin(), part.end(), IsDigit);
      int64_t index = 0;
      if (digits &&
          std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc()) {
        path_.push_back(Value::Int(index));
      } else {
        path_.push_back(Value::String(std::string(part)));
      }
    }
  }

  Value operator()(const Value& item) const {
    Value value = item;
    for (const Value& part : path_) {
      value = ElementOf(value, part);
      if (value.is_undefined() && otherwise_ != nullptr && !otherwise_->is_none()) {
        value = *otherwise_;
      }
    }
    return value;
  }

 private:
  ValueList path_;
  const Value* otherwise_;
};

const Value* At(const BoundArguments& bound, size_t index) {
  return bound.has(index) ? &bound[index] : nullptr;
}

Value FoldCase(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::String(LowerText(value.text())) : value;
}

// Makes items until one fails: Python makes them as they are asked for, so that it fails no sooner.
// `prepare` gives what makes them of an item; that fails no sooner, either. A filter or a test is
// looked for by its name once there is an item for it.
template <typename Prepare>
Value Generate(const Value& source, const Prepare& prepare) {
  // jinja asks first whether there is anything: false and none have no items, and are no error.
  if (!source.truth()) return Value::Sequence(Kind::kGenerator, {});
  ValueList made;
  std::unique_ptr<Failure> failure;
  try {
    const auto make = prepare();
    for (const Value& item : Iterate(source)) make(item, &made);
  } catch (Failure& caught) {
    failure = std::make_unique<Failure>(std::move(caught));
  }
  const Value generator = Value::Sequence(Kind::kGenerator, std::move(made));
  if (failure != nullptr) generator.set_failure(std::move(*failure));
  return generator;
}

// The arguments from the `first`th on.
Arguments Rest(const Arguments& arguments, size_t first) {
  Arguments rest;
  rest.named = arguments.named;
  for (size_t i = first; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  return rest;
}

std::string NameAt(const Arguments& arguments, size_t index, const char* filter) {
  if (index >= arguments.positional.size() || !arguments.positional[index].is_string()) {
    Fail(std::string(filter) + " needs a name as its argument " + std::to_string(index + 1));
  }
  return arguments.positional[index].text();
}

using Maker = std::function<void(const Value& item, ValueList* made)>;

Maker MapMaker(Machine& machine, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    const BoundArguments bound(arguments, "map", {"attribute", "default"}, 1);
    const Getter get(At(bound, 0), At(bound, 1));
    return [get](const Value& item, ValueList* made) { made->push_back(get(item)); };
  }
  const std::string name = NameAt(arguments, 0, "map");
  const FilterEntry* filter = FindFilter(name);
  Arguments rest = Rest(arguments, 1);
  const int64_t weight = rest.weight();
  return
      [&machine, name, filter, rest = std::move(rest), weight](const Value& item, ValueList* made) {
        if (filter == nullptr) Fail("map: no filter is named '" + name + "'");
        machine.Step(item.weight() + weight);
        made->push_back(filter->apply(machine, item, rest));
        machine.Made(made->back());
      };
}

Value Map(Machine& machine, const Value& value, const Arguments& arguments) {
  const Nested nested(machine);  // the filter may be map again
  return Generate(value, [&] { return MapMaker(machine, arguments); });
}

// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Maker SelectMaker(Machine& machine, const Arguments& arguments) {
  const size_t first = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) Fail("selectattr needs an attribute's name");
  const Getter get(by_attribute ? &arguments.positional[0] : nullptr);
  const bool tests = arguments.positional.size() > first;
  const std::string name = tests ? NameAt(arguments, first, "select") : "";
  const TestEntry* test = FindTest(name);
  return [&machine, get, tests, name, test, rest = Rest(arguments, first + 1)](const Value& item,
                                                                               ValueList* made) {
    machine.Step();
    const Value subject = get(item);
    if (tests && test == nullptr) Fail("select: no test is named '" + name + "'");
    const bool holds = tests ? test->holds(machine, subject, rest) : subject.truth();
    if (holds == wanted) made->push_back(item);
  };
}

template <bool wanted, bool by_attribute>
Value Select(Machine& machine, const Value& value, const Arguments& arguments) {
  return Generate(value, [&] { return SelectMaker<wanted, by_attribute>(machine, arguments); });
}

Value Count(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "length", {});
  return Value::Int(Length(value));
}

Value List(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "list", {});
  return Value::Sequence(Kind::kList, Iterate(value));
}

Value Items(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "items", {});
  ValueList items;
  if (value.is_undefined()) return Value::Sequence(Kind::kGenerator, {});
  const Value generator = Value::Sequence(Kind::kGenerator, {});
  if (!value.Is(Kind::kDict)) {
    generator.set_failure({"items: can only get items from a dict"});
    return generator;
  }
  for (const auto& [key, item] : value.dict().entries) {
    items.push_back(Value::Sequence(Kind::kTuple, {key, item}));
  }
  return Value::Sequence(Kind::kGenerator, std::move(items));
}

Value Join(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "join", {"d", "attribute"});
  const std::string between = bound.has(0) ? ToText(bound[0]) : "";
  const Getter get(At(bound, 1));
  std::string text;
  bool first = true;
  for (const Value& item : Iterate(value)) {
    if (!first) text += between;
    first = false;
    machine.Step();
    AppendText(get(item), &text);
    if (text.size() > kMaxTextBytes) Fail("a string is too long");
  }
  return Value::String(std::move(text));
}

Value First(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "first", {});
  if (value.Is(Kind::kGenerator) && *value.consumed() < value.items().size()) {
    return value.items()[(*value.consumed())++];
  }
  const ValueList items = Iterate(value);
  return items.empty() ? Value::Undefined("there is no first item: the sequence is empty")
                       : items.front();
}

void NeedReversible(const Value& value, const char* filter) {
  if (value.Is(Kind::kGenerator) || !(value.is_sequence() || value.is_string() ||
                                      value.Is(Kind::kDict) || value.Is(Kind::kView))) {
    Fail(std::string(filter) + " of a " + std::string(TypeName(value)));
  }
}

Value Last(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "last", {});
  if (value.is_undefined()) return Value::Undefined("there is no last item of what is undefined");
  NeedReversible(value, "last");
  const ValueList items = Iterate(value);
  return items.empty() ? Value::Undefined("there is no last item: the sequence is empty")
                       : items.back();
}

Value Reverse(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "reverse", {});
  if (value.is_string()) return SliceOf(value, Value::None(), Value::None(), Value::Int(-1));
  ValueList items = Iterate(value);
  std::reverse(items.begin(), items.end());
  return Value::Sequence(value.is_undefined() ? Kind::kList : Kind::kGenerator, std::move(items));
}

// Sorts as Python does, in which a reversed order keeps equals as they came.
void SortBy(ValueList* items, bool reverse, const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : *items) {
    Value sorts_by = key(item);
    keyed.emplace_back(std::move(sorts_by), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Less(b.first, a.first) : Less(a.first, b.first);
  });
  for (size_t i = 0; i < keyed.size(); ++i) (*items)[i] = std::move(keyed[i].second);
}

Value Sort(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Getter> getters;
  if (bound.has(2) && bound[2].is_string()) {
    for (std::string_view name : SplitAt(bound[2].text(), ",", -1, false)) {
      const Value attribute = Value::String(std::string(name));
      getters.emplace_back(&attribute);
    }
  } else {
    getters.emplace_back(At(bound, 2));
  }
  ValueList items = Iterate(value);
  SortBy(&items, bound.Truth(0, false), [&](const Value& item) {
    ValueList keys;
    for (const Getter& get : getters) keys.push_back(FoldCase(get(item), bound.Truth(1, false)));
    return Value::Sequence(Kind::kList, std::move(keys));
  });
  return Value::Sequence(Kind::kList, std::move(items));
}

Value GroupBy(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Getter get(At(bound, 0), At(bound, 1));
  const auto key = [&](const Value& item) { return FoldCase(get(item), bound.Truth(2, false)); };
  ValueList items = Iterate(value);
  SortBy(&items, false, key);
  ValueList groups;
  for (size_t at = 0; at < items.size();) {
    const Value first = key(items[at]);
    // Its key as the first of them has it.
    const Value grouper = get(items[at]);
    ValueList group;
    do {
      machine.Step();
      group.push_back(items[at++]);
    } while (at < items.size() && Equal(first, key(items[at])));
    groups.push_back(Value::Group(grouper, Value::Sequence(Kind::kList, std::move(group))));
  }
  return Value::Sequence(Kind::kList, std::move(groups));
}

Value DictSort(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  if (!value.Is(Kind::kDict)) {
    if (value.is_undefined()) Fail(value.note());
    Fail("dictsort of a " + std::string(TypeName(value)));
  }
  const std::string_view by = bound.Text(1, "key");
  if (by != "key" && by != "value") Fail("dictsort: 'by' is key or value");
  ValueList items;
  for (const auto& [key, item] : value.dict().entries) {
    items.push_back(Value::Sequence(Kind::kTuple, {key, item}));
  }
  SortBy(&items, bound.Truth(2, false), [&](const Value& item) {
    return FoldCase(item.items()[by == "key" ? 0 : 1], bound.Truth(0, false));
  });
  return Value::Sequence(Kind::kList, std::move(items));
}

Value Unique(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "unique", {"case_sensitive", "attribute"});
  const Getter get(At(bound, 1));
  if (!value.truth()) return Value::Sequence(Kind::kGenerator, Iterate(value));
  Dict seen;
  const auto make = [&](const Value& item, ValueList* made) {
    const Value key = FoldCase(get(item), bound.Truth(0, false));
    const size_t before = seen.entries.size();
    SetEntry(machine, &seen, key, Value::None());
    if (seen.entries.size() > before) made->push_back(item);
  };
  return Generate(value, [&] { return make; });
}

template <bool largest>
Value Extreme(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "min or max", {"case_sensitive", "attribute"});
  const Getter get(At(bound, 1));
  const ValueList items = Iterate(value);
  if (items.empty()) return Value::Undefined("no item: the sequence is empty");
  const auto key = [&](const Value& item) { return FoldCase(get(item), bound.Truth(0, false)); };
  const Value* best = &items[0];
  Value best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value other = key(items[i]);
    if (!(largest ? Less(best_key, other) : Less(other, best_key))) continue;
    best = &items[i];
    best_key = std::move(other);
  }
  return *best;
}

Value Sum(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "sum", {"attribute", "start"});
  const Getter get(At(bound, 0));
  Value sum = bound.has(1) ? bound[1] : Value::Int(0);
  if (sum.is_string()) Fail("sum: strings are put together by join");
  for (const Value& item : Iterate(value)) {
    sum = Arithmetic(machine, Operator::kAdd, sum, get(item));
  }
  return sum;
}

constexpr FilterEntry kSequenceFilters[] = {
    {"length", Count, false},
    {"count", Count, false},
    {"list", List},
    {"items", Items},
    {"join", Join},
    {"first", First},
    {"last", Last},
    {"reverse", Reverse},
    {"map", Map},
    {"select", Select<true, false>},
    {"reject", Select<false, false>},
    {"selectattr", Select<true, true>},
    {"rejectattr", Select<false, true>},
    {"sort", Sort},
    {"groupby", GroupBy},
    {"dictsort", DictSort},
    {"unique", Unique},
    {"min", Extreme<false>},
    {"max", Extreme<true>},
    {"sum", Sum},
};

}  // namespace

const FilterEntry* FindSequenceFilter(std::string_view name) {
  for (const FilterEntry& entry : kSequenceFilters) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
