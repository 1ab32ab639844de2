// JSON with limits: depth, duplicate keys, size. On top of nlohmann::json.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status.h"

namespace keel {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  int64_t max_bytes = int64_t{256} << 20;
};

// Refuses duplicate keys, deeper nesting, trailing text (a zero byte included), and numbers outside
// int64/uint64/double: kInvalidData. `where` stands first in messages, then where the last
// character of what is wrong stands (columns count characters): "train.jsonl:17: line 1, column 9:
// ...".
Result<Json> ParseJson(std::string_view text, std::string_view where,
                       const JsonLimits& limits = {});

// Typed access with a message that names `where` and the key; kInvalidData.
Result<int64_t> GetInt(const Json& object, std::string_view key, std::string_view where);
Result<double> GetDouble(const Json& object, std::string_view key, std::string_view where);
Result<std::string> GetString(const Json& object, std::string_view key, std::string_view where);
Result<bool> GetBool(const Json& object, std::string_view key, std::string_view where);

}  // namespace keel
