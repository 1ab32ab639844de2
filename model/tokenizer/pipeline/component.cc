#include "model/tokenizer/pipeline/component.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace keel::model {

Component::Component(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {
  if (!json.is_object()) Refuse("an object with a type is expected");
  type_ = String("type", "");
}

void Component::Refuse(std::string_view problem) const {
  throw Error(StatusCode::kInvalidData, fmt::format("{}: {}", where_, problem));
}

const Json* Component::Find(std::string_view key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

bool Component::Bool(std::string_view key) const {
  return ValueOrThrow(GetBool(*json_, key, where_));
}
bool Component::Bool(std::string_view key, bool fallback) const {
  return Find(key) == nullptr ? fallback : Bool(key);
}
int64_t Component::Int(std::string_view key) const {
  return ValueOrThrow(GetInt(*json_, key, where_));
}
std::string Component::String(std::string_view key) const {
  return ValueOrThrow(GetString(*json_, key, where_));
}
std::string Component::String(std::string_view key, std::string_view fallback) const {
  return Find(key) == nullptr ? std::string(fallback) : String(key);
}

std::vector<Component> Component::List(std::string_view key) const {
  const Json* list = Find(key);
  if (list == nullptr || !list->is_array()) {
    Refuse(fmt::format("{} must be a list of components", key));
  }
  std::vector<Component> parts;
  for (size_t i = 0; i < list->size(); ++i) {
    parts.emplace_back((*list)[i], fmt::format("{}.{}[{}]", where_, key, i));
  }
  return parts;
}

void Component::RefuseOtherKeys(const std::vector<std::string_view>& keys) const {
  for (const auto& [key, value] : json_->items()) {
    if (key == "type" || std::ranges::find(keys, key) != keys.end()) continue;
    Refuse(
        fmt::format("{} has a key \"{}\" that Keel does not know; it is needed to read the file "
                    "as it was meant",
                    type_, Printable(key)));
  }
}

void Component::RefuseType(std::string_view kind, std::string_view accepted) const {
  Refuse(fmt::format("the {} \"{}\" is not supported; {} are", kind, Printable(type_), accepted));
}

}  // namespace keel::model
