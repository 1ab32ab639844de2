#include "model/chat_template/jinja/value.h"

#include <algorithm>

#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

struct NotedText {
  std::string text;
  bool is_name = false;  // the text is the name of what is missing
  std::string_view type;
};

struct BoundMethod {
  const MethodEntry* entry;
  Value self;
};

// Dicts of fewer keys are searched from the front.
constexpr size_t kIndexedKeys = 12;

}  // namespace

struct Value::Items {
  ValueList list;
  std::string note;
  std::array<int64_t, 3> bounds{};
  size_t consumed = 0;
  std::unique_ptr<Failure> failure;
};

bool HasHash(const Value& key) {
  if (!key.Is(Kind::kTuple)) return !key.Is(Kind::kList) && !key.Is(Kind::kDict);
  return std::all_of(key.items().begin(), key.items().end(), HasHash);
}

void Fail(std::string message) { throw Failure{std::move(message)}; }

Value Value::Undefined(std::string why) {
  Value value;
  value.object_ = std::make_shared<NotedText>(NotedText{std::move(why), false, {}});
  return value;
}

Value Value::MissingName(std::string_view type, std::string name) {
  Value value;
  value.object_ = std::make_shared<NotedText>(NotedText{std::move(name), true, type});
  return value;
}

Value Value::Bool(bool b) {
  Value value(Kind::kBool);
  value.number_.integer = b ? 1 : 0;
  return value;
}

Value Value::Int(int64_t i) {
  Value value(Kind::kInt);
  value.number_.integer = i;
  return value;
}

Value Value::Float(double d) {
  Value value(Kind::kFloat);
  value.number_.real = d;
  return value;
}

void Value::Hold(const Value& element) {
  depth_ = std::max(depth_, static_cast<uint16_t>(element.depth_ + 1));
  weight_ += element.weight_;
  if (depth_ > kMaxValueDepth) Fail("lists and dicts are nested too deep");
  if (weight_ > kMaxWeight) Fail("a list or dict is too large");
}

Value Value::String(std::string text, bool safe) {
  if (text.size() > kMaxTextBytes) Fail("a string is too long");
  Value value(Kind::kString);
  value.weight_ = 1 + static_cast<uint32_t>(text.size() / 64);
  value.safe_ = safe;
  value.object_ = std::make_shared<std::string>(std::move(text));
  return value;
}

Value Value::Sequence(Kind kind, ValueList items) {
  Value value(kind);
  for (const Value& item : items) value.Hold(item);
  auto object = std::make_shared<Items>();
  object->list = std::move(items);
  value.object_ = std::move(object);
  return value;
}

Value Value::Range(ValueList items, int64_t start, int64_t stop, int64_t step) {
  Value value = Sequence(Kind::kRange, std::move(items));
  auto* range = static_cast<Items*>(value.object_.get());
  range->note = "range(" + std::to_string(start) + ", " + std::to_string(stop) +
                (step == 1 ? "" : ", " + std::to_string(step)) + ")";
  range->bounds = {start, stop, step};
  return value;
}

Value Value::Group(Value grouper, Value list) {
  Value value = Sequence(Kind::kTuple, {std::move(grouper), std::move(list)});
  static_cast<Items*>(value.object_.get())->note = "group";
  return value;
}

bool Value::is_group() const {
  return kind_ == Kind::kTuple && !static_cast<Items*>(object_.get())->note.empty();
}

Value Value::View(ValueList items, std::string name) {
  Value value = Sequence(Kind::kView, std::move(items));
  static_cast<Items*>(value.object_.get())->note = std::move(name);
  return value;
}

Value Value::FromDict(std::shared_ptr<Dict> dict) {
  Value value(Kind::kDict);
  for (const auto& [key, item] : dict->entries) {
    value.Hold(key);
    value.Hold(item);
  }
  value.object_ = std::move(dict);
  return value;
}

Value Value::Namespace(std::shared_ptr<Dict> fields) {
  Value value(Kind::kNamespace);
  value.object_ = std::move(fields);
  return value;
}

Value Value::Function(const FunctionEntry* entry) {
  Value value(Kind::kFunction);
  value.object_ = std::make_shared<const FunctionEntry*>(entry);
  return value;
}

Value Value::Method(const MethodEntry* entry, Value self) {
  Value value(Kind::kMethod);
  value.Hold(self);
  value.object_ = std::make_shared<BoundMethod>(BoundMethod{entry, std::move(self)});
  return value;
}

Value Value::Macro(std::shared_ptr<const MacroValue> macro) {
  Value value(Kind::kMacro);
  value.object_ = std::const_pointer_cast<MacroValue>(std::move(macro));
  return value;
}

Value Value::Loop(std::shared_ptr<LoopState> loop, const Value& over) {
  Value value(Kind::kLoop);
  value.Hold(over);
  value.object_ = std::move(loop);
  return value;
}

double Value::real() const {
  return kind_ == Kind::kFloat ? number_.real : static_cast<double>(number_.integer);
}

const std::string& Value::text() const { return *static_cast<std::string*>(object_.get()); }
const ValueList& Value::items() const { return static_cast<Items*>(object_.get())->list; }
size_t* Value::consumed() const { return &static_cast<Items*>(object_.get())->consumed; }

const std::array<int64_t, 3>& Value::bounds() const {
  return static_cast<Items*>(object_.get())->bounds;
}

void Value::set_failure(Failure failure) const {
  static_cast<Items*>(object_.get())->failure = std::make_unique<Failure>(std::move(failure));
}

const Failure* Value::failure() const { return static_cast<Items*>(object_.get())->failure.get(); }

std::string Value::note() const {
  if (kind_ != Kind::kUndefined) return static_cast<Items*>(object_.get())->note;
  if (object_ == nullptr) return "the value is undefined";
  const NotedText& noted = *static_cast<NotedText*>(object_.get());
  if (!noted.is_name) return noted.text;
  if (noted.type.empty()) return "'" + noted.text + "' is undefined";
  return "'" + std::string(noted.type) + " object' has no attribute '" + noted.text + "'";
}

Dict& Value::dict() const { return *static_cast<Dict*>(object_.get()); }
LoopState& Value::loop() const { return *static_cast<LoopState*>(object_.get()); }
const MacroValue& Value::macro() const { return *static_cast<MacroValue*>(object_.get()); }

const FunctionEntry& Value::function() const {
  return **static_cast<const FunctionEntry**>(object_.get());
}

const MethodEntry& Value::method() const {
  return *static_cast<BoundMethod*>(object_.get())->entry;
}

const Value& Value::self() const { return static_cast<BoundMethod*>(object_.get())->self; }

bool Value::truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return number_.integer != 0;
    case Kind::kFloat:
      return number_.real != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !items().empty();
    case Kind::kDict:
      return !dict().entries.empty();
    default:
      return true;
  }
}

const Value* Dict::Find(std::string_view key) const {
  if (entries.size() < kIndexedKeys) {
    for (const auto& [name, value] : entries) {
      if (name.is_string() && name.text() == key) return &value;
    }
    return nullptr;
  }
  for (; indexed_ < entries.size(); ++indexed_) {
    const Value& name = entries[indexed_].first;
    if (name.is_string()) index_.emplace(name.text(), indexed_);
  }
  const auto found = index_.find(std::string(key));
  return found == index_.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::Find(const Value& key) const {
  if (key.is_string()) return Find(std::string_view(key.text()));
  if (!HasHash(key)) {
    Fail("a " + std::string(TypeName(key)) + " cannot be the key of a dict: it has no hash");
  }
  for (const auto& [name, value] : entries) {
    if (Equal(name, key)) return &value;
  }
  return nullptr;
}

void Dict::Set(const Value& key, Value value) {
  if (const Value* there = Find(key)) {
    *const_cast<Value*>(there) = std::move(value);
  } else {
    entries.emplace_back(key, std::move(value));
  }
}

Value FromJson(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) {
        Fail("the number " + std::to_string(number) + " is beyond 64 bits with a sign");
      }
      return Value::Int(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return Value::String(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      ValueList items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromJson(item));
      return Value::Sequence(Kind::kList, std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      dict->entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict->entries.emplace_back(Value::String(key), FromJson(item));
      }
      return Value::FromDict(std::move(dict));
    }
    default:
      return Value::None();
  }
}

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "view of a dict";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
    case Kind::kMacro:
      return "macro";
    case Kind::kLoop:
      return "loop";
    case Kind::kSelf:
      return "TemplateReference";
  }
  return "value";
}

}  // namespace keel::model::jinja
