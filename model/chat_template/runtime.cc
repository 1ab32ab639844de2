#include "model/chat_template/runtime.h"

#include <algorithm>

namespace keel::model::jinja {

Machine::~Machine() {
  for (const auto& fields : namespaces) fields->entries.clear();
}

void Machine::Step(int64_t count) {
  steps += count;
  if (steps > kMaxSteps) Fail("the template takes too many steps");
}

void Machine::Charge(size_t count) {
  if (count > kMaxTextBytes) Fail("the template makes a string that is too long");
  bytes += static_cast<int64_t>(count);
  if (bytes > kMaxTotalBytes) Fail("the template makes too much text");
}

BoundArguments::BoundArguments(const Arguments& arguments, std::string_view what,
                               std::initializer_list<std::string_view> names, size_t required)
    : what_(what), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size()) {
    Fail(what_ + " takes at most " + std::to_string(names_.size()) + " arguments, not " +
         std::to_string(arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      Fail(what_ + " takes no argument named '" + std::string(name) + "'");
    }
    const auto index = static_cast<size_t>(found - names_.begin());
    if (values_[index] != nullptr) Fail(what_ + ": '" + std::string(name) + "' is given twice");
    values_[index] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) Fail(what_ + " needs the argument '" + std::string(names_[i]) + "'");
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

std::string_view BoundArguments::Text(size_t index, std::string_view otherwise) const {
  if (!has(index)) return otherwise;
  if (!values_[index]->is_string()) Refuse(index, "a string");
  return values_[index]->text();
}

void BoundArguments::Refuse(size_t index, std::string_view expected) const {
  Fail(what_ + ": '" + std::string(names_[index]) + "' must be " + std::string(expected) +
       ", not a " + std::string(TypeName(*values_[index])));
}

}  // namespace keel::model::jinja
