// Option: a line of the schema's table. See schema.h.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"

namespace keel::options {

enum class Kind {
  kBool,
  kInt,
  kDouble,
  kString,
  kStringList,
  kIntList,
  kDoubleList,
  kMap,
  kMapList
};

struct Option {
  std::string path;
  Kind kind = Kind::kString;
  bool nullable = false;
  std::optional<double> min, max;
  bool exclusive_min = false;
  std::vector<std::string> choices;            // of a string, or of each item of a list
  std::map<std::string, std::string> answers;  // by values that are no choices
  std::string unit;
  std::string doc;
  Json initial;  // the default
  std::function<Json()> get;
  std::function<void(const Json&)> set;
  std::string origin = "default";  // "run.yaml:3", "command line"
  bool per_node = false;           // may differ from node to node; all else is the job's
  bool secret = false;             // may hold a password: in no message
  bool of_samples = false;         // RL: a response, or its score, depends on it
  bool or_one = false;             // of a list: one item alone is a list of it, and shown alone

  // Builders, so that the table reads as sentences.
  Option& Range(double low, std::optional<double> high = std::nullopt) {
    min = low;
    max = high;
    return *this;
  }
  Option& Above(double low) {
    min = low;
    exclusive_min = true;
    return *this;
  }
  // Of an enum: of some of its names.
  Option& OneOf(std::vector<std::string> values) {
    choices = std::move(values);
    return *this;
  }
  // What to do instead of a value that is no choice, and that someone may bring from elsewhere.
  Option& Answer(std::string value, std::string advice) {
    answers[std::move(value)] = std::move(advice);
    return *this;
  }
  Option& PerNode() {
    per_node = true;
    return *this;
  }
  Option& Secret() {
    secret = true;
    return *this;
  }
  Option& OfSamples() {
    of_samples = true;
    return *this;
  }
  Option& OrOne() {
    or_one = true;
    get = [list = std::move(get)] {
      Json value = list();
      return value.size() == 1 ? value[0] : value;
    };
    set = [list = std::move(set)](const Json& value) {
      list(value.is_array() ? value : Json::array({value}));
    };
    initial = get();
    return *this;
  }
  Option& Unit(std::string text) {
    unit = std::move(text);
    return *this;
  }
};

}  // namespace keel::options
