#include "common/json.h"

#include <fmt/format.h>

#include "common/json_builder.h"
#include "common/text.h"

namespace keel {

namespace {

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status Wrong(std::string_view where, std::string_view key, std::string_view expected,
             const Json* found) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}: expected {}, found {}", where, key, expected,
                            found == nullptr ? "nothing" : Printable(Text(*found))));
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return BuildJson(text, where, limits, JsonNumbers::kStandard);
}

Result<int64_t> GetInt(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) return Wrong(where, key, "an integer", value);
  return value->get<int64_t>();
}

Result<double> GetDouble(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_number()) return Wrong(where, key, "a number", value);
  return value->get<double>();
}

Result<std::string> GetString(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_string()) return Wrong(where, key, "a string", value);
  return value->get<std::string>();
}

Result<bool> GetBool(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_boolean()) return Wrong(where, key, "true or false", value);
  return value->get<bool>();
}

}  // namespace keel
