#include "model/config/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "common/text.h"

namespace keel::model {

std::string Shown(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return fmt::format("{}", value.get<double>());
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void ConfigReader::Rename(std::span<const KeyName> names) {
  names_ = names;
  for (const KeyName& name : names) {
    const auto own = json_.find(name.file), usual = json_.find(name.usual);
    if (own != json_.end() && usual != json_.end() && *own != *usual) {
      Problem(fmt::format("{} is {} and {} is {}: they are one key, give one of them", name.file,
                          Shown(*own), name.usual, Shown(*usual)));
    }
  }
}

std::string_view ConfigReader::InFile(std::string_view key) const {
  for (const KeyName& name : names_)
    if (name.usual == key && (json_.contains(name.file) || !json_.contains(key))) return name.file;
  return key;
}

const Json* ConfigReader::Find(std::string_view key) {
  asked_.emplace(key);
  for (const KeyName& name : names_)
    if (name.usual == key) asked_.emplace(name.file);
  const auto it = json_.find(InFile(key));
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

int64_t ConfigReader::Int(std::string_view key, std::optional<int64_t> fallback) {
  const Json* value = Find(key);
  if (value == nullptr && !fallback) Missing(key, "an integer");
  if (value == nullptr) return fallback.value_or(0);
  if (value->is_number_integer()) return value->get<int64_t>();
  Wrong(key, "an integer", *value);
  return fallback.value_or(0);
}

int64_t ConfigReader::Positive(std::string_view key, std::optional<int64_t> fallback,
                               int64_t most) {
  const int64_t value = Int(key, fallback);
  const Json* found = Find(key);
  if (found != nullptr && found->is_number_integer() && (value < 1 || value > most)) {
    Wrong(key, fmt::format("an integer from 1 to {}", most), *found);
  }
  return value;
}

double ConfigReader::Number(std::string_view key, double fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  Wrong(key, "a number", *value);
  return fallback;
}

double ConfigReader::Within(double least, double most, std::string_view key, double fallback) {
  const double value = Number(key, fallback);
  if (value >= least && value <= most) return value;
  Problem(fmt::format("{}: expected a number from {} to {}, found {}", InFile(key), least, most,
                      value));
  return fallback;
}

bool ConfigReader::Bool(std::string_view key, bool fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Wrong(key, "true or false", *value);
  return fallback;
}

std::string ConfigReader::String(std::string_view key, std::string fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Wrong(key, "a string", *value);
  return fallback;
}

std::vector<double> ConfigReader::Numbers(std::string_view key, size_t count, double least,
                                          double most) {
  const std::string expected =
      fmt::format("a list of {} numbers from {} to {}", count, least, most);
  const Json* value = Find(key);
  std::vector<double> numbers(count, least);
  if (value == nullptr) {
    Missing(key, expected);
  } else if (!value->is_array() || value->size() != count) {
    Problem(fmt::format("{}: expected {}, found {}", key, expected,
                        value->is_array() ? fmt::format("{}", value->size()) : Shown(*value)));
  } else {
    for (size_t i = 0; i < count; ++i) {
      const Json& number = (*value)[i];
      if (number.is_number() && number.get<double>() >= least && number.get<double>() <= most) {
        numbers[i] = number.get<double>();
      } else {
        Wrong(key, expected, number);
        break;
      }
    }
  }
  return numbers;
}

void ConfigReader::Wrong(std::string_view key, std::string_view expected, const Json& found) {
  Problem(fmt::format("{}: expected {}, found {}", InFile(key), expected, Shown(found)));
}

void ConfigReader::Missing(std::string_view key, std::string_view expected) {
  Problem(fmt::format("{}: missing, expected {}", InFile(key), expected));
}

Status ConfigReader::status() const {
  if (problems_.empty()) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}", where_, fmt::join(problems_, "; ")));
}

}  // namespace keel::model
