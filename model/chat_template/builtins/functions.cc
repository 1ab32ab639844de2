// The global functions of a chat template.
#include <fmt/format.h>

#include <ctime>

#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"

namespace keel::model::jinja {
namespace {

// jinja's sandbox allows no longer range.
constexpr int64_t kMaxRange = 100'000;

Value Range(Machine& machine, const Arguments& arguments) {
  const BoundArguments bound(arguments, "range", {"/start", "/stop", "/step"}, 1);
  const bool one = !bound.has(1);
  for (size_t i = 0; i < 3; ++i) {
    if (bound.has(i) && !bound[i].is_integral()) {
      if (bound[i].is_undefined()) Fail(bound[i].note());
      Fail("range needs integers, not a " + std::string(TypeName(bound[i])));
    }
  }
  const int64_t start = one ? 0 : bound.Integer(0, 0);
  const int64_t stop = one ? bound.Integer(0, 0) : bound.Integer(1, 0);
  const int64_t step = bound.Integer(2, 1);
  if (step == 0) Fail("range: the step is 0");
  ValueList items;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      Fail("range: more than " + std::to_string(kMaxRange) + " items");
    }
    items.push_back(Value::Int(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  machine.Step(static_cast<int64_t>(items.size()));
  return Value::Range(std::move(items), start, stop, step);
}

std::shared_ptr<Dict> Fields(Machine& machine, const char* what, const Arguments& arguments) {
  auto fields = std::make_shared<Dict>();
  if (arguments.positional.size() > 1) Fail(std::string(what) + " takes one dict at most");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_undefined()) Fail(from.note());
    if (from.Is(Kind::kDict)) {
      machine.Step(std::ssize(from.dict().entries));
      fields->entries = from.dict().entries;
    } else {
      for (const Value& pair : Iterate(from)) {
        const ValueList both = Iterate(pair);
        if (both.size() != 2) Fail(std::string(what) + ": an item is not a pair");
        SetEntry(machine, fields.get(), both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    SetEntry(machine, fields.get(), Value::String(std::string(name)), value);
  }
  return fields;
}

Value NamedFields(Machine& machine, std::shared_ptr<Dict> fields) {
  machine.namespaces.push_back(fields);
  return Value::Namespace(std::move(fields));
}

Value Namespace(Machine& machine, const Arguments& arguments) {
  std::shared_ptr<Dict> fields = Fields(machine, "namespace", arguments);
  for (const auto& [name, value] : fields->entries) {
    if (name.is_string() && name.text().starts_with('_')) {
      Fail("a namespace cannot have the field '" + name.text() + "', which begins with '_'");
    }
  }
  return NamedFields(machine, std::move(fields));
}

Value MakeDict(Machine& machine, const Arguments& arguments) {
  return Value::FromDict(Fields(machine, "dict", arguments));
}

Value RaiseException(Machine&, const Arguments& arguments) {
  const BoundArguments bound(arguments, "raise_exception", {"message"}, 1);
  Fail(ToText(bound[0]));
}

Value StrftimeNow(Machine& machine, const Arguments& arguments) {
  const BoundArguments bound(arguments, "strftime_now", {"format"}, 1);
  const std::string_view asked = bound.Text(0, "");
  if (asked.size() > 1000 || asked.find('\0') != std::string_view::npos) {
    Fail("strftime_now: the format is too long, or has a zero byte in it");
  }
  const auto now = machine.clock();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = now - std::chrono::system_clock::from_time_t(seconds);
  // What Python adds to the C library: microseconds, and no zone as the time has none.
  std::string format;
  for (size_t i = 0; i < asked.size(); ++i) {
    const char next = i + 1 < asked.size() ? asked[i + 1] : '\0';
    if (asked[i] != '%') {
      format.push_back(asked[i]);
    } else if (next == 'f') {
      format += fmt::format("{:06}",
                            std::chrono::duration_cast<std::chrono::microseconds>(since).count());
    } else if (next != 'z' && next != 'Z') {
      format.append(asked.substr(i, next == '\0' ? 1 : 2));
    }
    if (asked[i] == '%') ++i;
  }
  std::tm local{};
  localtime_r(&seconds, &local);
  // A last character tells an empty result from one that does not fit.
  format.push_back('.');
  std::string text(format.size() * 64 + 64, '\0');
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (size == 0) Fail("strftime_now: the text is too long");
  text.resize(size - 1);
  return Value::String(std::move(text));
}

// A cycler is a namespace that has methods of its own; a template may have set its fields.
void Turn(const Value& cycler, int64_t to) {
  Dict& fields = cycler.dict();
  const Value items = *fields.Find("items");
  if (!items.Is(Kind::kTuple) || to < 0 || to >= Length(items)) {
    Fail("the fields of a cycler cannot be set");
  }
  fields.Set(Value::String("pos"), Value::Int(to));
  fields.Set(Value::String("current"), items.items()[static_cast<size_t>(to)]);
}

Value CyclerNext(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "cycler.next", {});
  const Value* const at = self.dict().Find("pos");
  const int64_t place = at != nullptr && at->Is(Kind::kInt) ? at->integer() : -1;
  Turn(self, place);
  Value current = *self.dict().Find("current");
  Turn(self, (place + 1) % Length(*self.dict().Find("items")));
  return current;
}

Value CyclerReset(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "cycler.reset", {});
  Turn(self, 0);
  return Value::None();
}

Value Cycler(Machine& machine, const Arguments& arguments) {
  static constexpr MethodEntry kNext = {Kind::kNamespace, "next", CyclerNext};
  static constexpr MethodEntry kReset = {Kind::kNamespace, "reset", CyclerReset};
  if (arguments.positional.empty() || !arguments.named.empty()) {
    Fail("cycler needs items, without names");
  }
  auto fields = std::make_shared<Dict>();
  fields->Set(Value::String("items"), Value::Sequence(Kind::kTuple, arguments.positional));
  const Value cycler = NamedFields(machine, fields);
  fields->Set(Value::String("next"), Value::Method(&kNext, cycler));
  fields->Set(Value::String("reset"), Value::Method(&kReset, cycler));
  Turn(cycler, 0);
  return cycler;
}

// What joiner gives is a method of a namespace that nothing else sees.
Value Joined(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "joiner", {});
  const Value* const separator = self.dict().Find("sep");
  if (self.dict().Find("used") != nullptr) return *separator;
  self.dict().Set(Value::String("used"), Value::Bool(true));
  return Value::String("");
}

Value Joiner(Machine& machine, const Arguments& arguments) {
  static constexpr MethodEntry kCall = {Kind::kNamespace, "joiner", Joined};
  const BoundArguments bound(arguments, "joiner", {"sep"});
  auto fields = std::make_shared<Dict>();
  fields->Set(Value::String("sep"), bound.has(0) ? bound[0] : Value::String(", "));
  return Value::Method(&kCall, NamedFields(machine, std::move(fields)));
}

Value Lipsum(Machine&, const Arguments&) {
  Fail("the function 'lipsum' is not supported: a prompt is the same each time");
}

constexpr FunctionEntry kFunctions[] = {
    {"range", Range},
    {"namespace", Namespace},
    {"dict", MakeDict},
    {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
    {"cycler", Cycler},
    {"joiner", Joiner},
    {"lipsum", Lipsum},
};

}  // namespace

const FunctionEntry* FindFunction(std::string_view name) {
  for (const FunctionEntry& entry : kFunctions) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
