#include "common/options/option_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "common/text.h"

namespace keel::options {

namespace {

bool LooksOctal(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<double> ToDouble(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  if (text.empty() || text.find_first_of("0123456789") == std::string_view::npos ||
      LooksOctal(text))
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<int64_t> ToInt(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  if (LooksOctal(text)) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  // 1e3 is a fine way to write a thousand.
  const std::optional<double> number = ToDouble(text);
  if (number && text.find_first_of("eE") != std::string_view::npos &&
      *number == std::floor(*number) && std::fabs(*number) < 9e15) {
    return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

// YAML's own three spellings of each, one of which is Python's.
std::optional<bool> ToBool(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

// Where the option does not say: counts go into 32 bits on their way, and numbers into fp32.
double LargestOf(const Option& option) {
  if (option.kind == Kind::kDouble || option.kind == Kind::kDoubleList)
    return std::numeric_limits<float>::max();
  const bool wide =
      option.kind != Kind::kInt || option.unit == "bytes" || option.path.ends_with("seed");
  return wide ? static_cast<double>(std::numeric_limits<int64_t>::max())
              : std::numeric_limits<int32_t>::max();
}

}  // namespace

Json FreeValue(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return nullptr;
    case YamlNode::Kind::kSequence: {
      Json list = Json::array();
      for (const YamlNode& item : node.items) list.push_back(FreeValue(item));
      return list;
    }
    case YamlNode::Kind::kMap: {
      Json map = Json::object();
      for (const auto& [key, value] : node.entries) map[key] = FreeValue(value);
      return map;
    }
    case YamlNode::Kind::kScalar:
      break;
  }
  if (node.quoted) return node.text;
  if (const auto boolean = ToBool(node.text)) return *boolean;
  if (const auto integer = ToInt(node.text);
      integer && node.text.find_first_of("eE.") == std::string::npos)
    return *integer;
  if (const auto number = ToDouble(node.text)) return *number;
  return node.text;
}

std::string KindName(const Option& option) {
  std::string name;
  switch (option.kind) {
    case Kind::kBool:
      name = "true or false";
      break;
    case Kind::kInt:
      name = "an integer";
      break;
    case Kind::kDouble:
      name = "a number";
      break;
    case Kind::kString:
      name = "a string";
      break;
    case Kind::kStringList:
      name = "a list of strings";
      break;
    case Kind::kIntList:
      name = "a list of integers";
      break;
    case Kind::kDoubleList:
      name = "a list of numbers";
      break;
    case Kind::kMap:
      name = "a map";
      break;
    case Kind::kMapList:
      name = "a list of maps";
      break;
  }
  if (option.kind == Kind::kString && !option.choices.empty())
    name = "one of " + fmt::format("{}", fmt::join(option.choices, ", "));
  if (option.or_one) name = "a string or " + name;
  return option.nullable ? name + " or null" : name;
}

std::string Shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  return node.quoted ? fmt::format("the string \"{}\"", node.text)
                     : fmt::format("\"{}\"", node.text);
}

std::optional<Json> Convert(const Option& option, const YamlNode& node, std::string& problem,
                            std::string& advice) {
  const auto fail = [&]() -> std::optional<Json> {
    problem = fmt::format("{}: expected {}, got {}", option.path, KindName(option), Shown(node));
    return std::nullopt;
  };
  const auto in_range = [&](double value) {
    const bool low =
        option.min && (option.exclusive_min ? value <= *option.min : value < *option.min);
    const double most = option.max.value_or(LargestOf(option));
    const bool high = value > most && (option.max || std::isfinite(value));
    if (!low && !high) return true;
    std::string range =
        option.min ? fmt::format("{} {}", option.exclusive_min ? "above" : "at least", *option.min)
                   : "";
    if (option.max || high)
      range += fmt::format("{}at most {}", range.empty() ? "" : " and ", most);
    problem = fmt::format("{}: expected {}, got {}", option.path, range, node.text);
    return false;
  };
  const auto known = [&](const std::string& value) {
    if (option.choices.empty() ||
        std::find(option.choices.begin(), option.choices.end(), value) != option.choices.end()) {
      return true;
    }
    problem = fmt::format("{}: expected one of {}, got \"{}\"", option.path,
                          fmt::join(option.choices, ", "), value);
    const auto answer = option.answers.find(value);
    const std::string near = Closest(value, option.choices);
    if (answer != option.answers.end()) {
      advice = answer->second;
    } else if (!near.empty()) {
      advice = fmt::format("did you mean {}?", near);
    }
    return false;
  };
  if (node.kind == YamlNode::Kind::kNull) {
    if (option.nullable) return Json(nullptr);
    if (option.kind == Kind::kMap) return Json::object();
    if (option.kind == Kind::kStringList || option.kind == Kind::kMapList) advice = "write []";
    return fail();
  }
  const bool scalar = node.kind == YamlNode::Kind::kScalar;
  // Python's word would be taken for a name.
  if (scalar && !node.quoted && node.text == "None") {
    const bool list = option.kind == Kind::kStringList || option.kind == Kind::kIntList ||
                      option.kind == Kind::kDoubleList || option.kind == Kind::kMapList;
    advice = option.nullable ? "write null"
             : list          ? "write []"
                    : "put it in quotes if it is a name; leave the key out for its default";
    return fail();
  }
  switch (option.kind) {
    case Kind::kBool:
      if (const auto value = ToBool(node.text); scalar && !node.quoted && value)
        return Json(*value);
      if (scalar && !node.quoted) advice = "write true or false";
      return fail();
    case Kind::kInt: {
      if (!scalar || node.quoted) return fail();
      const auto value = ToInt(node.text);
      if (!value && LooksOctal(node.text))
        advice = "leading zeros are refused, since YAML readers take them for octal";
      if (!value && node.text.find_first_not_of("+-0123456789") == std::string::npos &&
          node.text.size() > 18)
        advice = fmt::format("integers are at most {}", std::numeric_limits<int64_t>::max());
      if (!value) return fail();
      return in_range(static_cast<double>(*value)) ? std::optional<Json>(*value) : std::nullopt;
    }
    case Kind::kDouble: {
      if (!scalar || node.quoted) return fail();
      const auto value = ToDouble(node.text);
      if (!value) return fail();
      return in_range(*value) ? std::optional<Json>(*value) : std::nullopt;
    }
    case Kind::kString:
      if (!scalar) return fail();
      return known(node.text) ? std::optional<Json>(node.text) : std::nullopt;
    case Kind::kStringList: {
      if (scalar && option.or_one)
        return known(node.text) ? std::optional<Json>(Json::array({node.text})) : std::nullopt;
      if (node.kind != YamlNode::Kind::kSequence) {
        if (!scalar) return fail();
        // What would be refused in a list, too, is answered at once.
        if (option.answers.contains(node.text) && !known(node.text)) return std::nullopt;
        advice = fmt::format("write [{}]", node.text);
        return fail();
      }
      Json list = Json::array();
      for (const YamlNode& item : node.items) {
        if (item.kind != YamlNode::Kind::kScalar) return fail();
        if (!known(item.text)) return std::nullopt;
        list.push_back(item.text);
      }
      return list;
    }
    case Kind::kIntList: {
      if (node.kind != YamlNode::Kind::kSequence) return fail();
      Json list = Json::array();
      for (const YamlNode& item : node.items) {
        const auto value =
            item.kind == YamlNode::Kind::kScalar && !item.quoted ? ToInt(item.text) : std::nullopt;
        if (!value) return fail();
        if (!in_range(static_cast<double>(*value))) return std::nullopt;
        list.push_back(*value);
      }
      return list;
    }
    case Kind::kDoubleList: {
      if (node.kind != YamlNode::Kind::kSequence) return fail();
      Json list = Json::array();
      for (const YamlNode& item : node.items) {
        const auto value = item.kind == YamlNode::Kind::kScalar && !item.quoted
                               ? ToDouble(item.text)
                               : std::nullopt;
        if (!value) return fail();
        if (option.min && *value < *option.min) return in_range(*value), std::nullopt;
        list.push_back(*value);
      }
      return list;
    }
    case Kind::kMap:
      if (node.kind != YamlNode::Kind::kMap) return fail();
      return FreeValue(node);
    case Kind::kMapList: {
      if (node.kind != YamlNode::Kind::kSequence) return fail();
      Json list = Json::array();
      for (const YamlNode& item : node.items) {
        if (item.kind != YamlNode::Kind::kMap) return fail();
        list.push_back(FreeValue(item));
      }
      return list;
    }
  }
  return fail();
}

}  // namespace keel::options
