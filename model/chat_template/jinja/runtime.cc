#include "model/chat_template/jinja/runtime.h"

#include <algorithm>

namespace keel::model::jinja {

Machine::~Machine() {
  for (const auto& fields : namespaces) fields->entries.clear();
}

void Machine::Charge(size_t count) {
  if (count > kMaxTextBytes) Fail("the template makes a string that is too long");
  bytes += static_cast<int64_t>(count);
  if (bytes > kMaxTotalBytes) Fail("the template makes too much text");
}

void Machine::Made(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return Charge(value.text().size());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kGenerator:
      return Step(std::ssize(value.items()));
    default:
      return;
  }
}

int64_t Arguments::weight() const {
  int64_t sum = 0;
  for (const Value& value : positional) sum += value.weight();
  for (const auto& [name, value] : named) sum += value.weight();
  return sum;
}

void SetEntry(Machine& machine, Dict* dict, const Value& key, Value value) {
  // Strings alone have an index.
  machine.Step(key.is_string() ? 1 : std::ssize(dict->entries) + 1);
  dict->Set(key, std::move(value));
}

namespace {

// Of a parameter, as people know it.
std::string ParameterName(std::string_view name) {
  return std::string(name.substr(name.starts_with('/') ? 1 : 0));
}

}  // namespace

BoundArguments::BoundArguments(const Arguments& arguments, std::string_view what,
                               std::initializer_list<std::string_view> names, size_t required)
    : what_(what) {
  const std::string prefix(what);
  const size_t count = std::min(names.size(), kMost);
  std::copy_n(names.begin(), count, names_.begin());
  if (arguments.positional.size() > count) {
    Fail(prefix + " takes at most " + std::to_string(count) + " arguments, not " +
         std::to_string(arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t index = 0;
    while (index < count && names_[index] != name) ++index;
    if (index == count) Fail(prefix + " takes no argument named '" + std::string(name) + "'");
    if (values_[index] != nullptr) Fail(prefix + ": '" + std::string(name) + "' is given twice");
    values_[index] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      Fail(prefix + " needs the argument '" + ParameterName(names_[i]) + "'");
    }
  }
}

bool BoundArguments::Truth(size_t index, bool otherwise) const {
  return has(index) ? values_[index]->truth() : otherwise;
}

int64_t BoundArguments::Integer(size_t index, int64_t otherwise) const {
  if (!has(index) || values_[index]->is_none()) return otherwise;
  if (!values_[index]->is_integral()) Refuse(index, "an integer");
  return values_[index]->integer();
}

Value BoundArguments::Number(size_t index, int64_t otherwise) const {
  if (!has(index) || values_[index]->is_none()) return Value::Int(otherwise);
  if (!values_[index]->is_number()) Refuse(index, "a number");
  return *values_[index];
}

std::string_view BoundArguments::Text(size_t index, std::string_view otherwise) const {
  if (!has(index)) return otherwise;
  if (!values_[index]->is_string()) Refuse(index, "a string");
  return values_[index]->text();
}

void BoundArguments::Refuse(size_t index, std::string_view expected) const {
  Fail(std::string(what_) + ": '" + ParameterName(names_[index]) + "' must be " +
       std::string(expected) + ", not a " + std::string(TypeName(*values_[index])));
}

}  // namespace keel::model::jinja
