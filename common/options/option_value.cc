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

}  // namespace

double LargestOf(const Option& option) {
  if (option.max) return *option.max;
  if (option.kind == Kind::kDouble || option.kind == Kind::kDoubleList)
    return std::numeric_limits<float>::max();
  const bool wide =
      option.kind != Kind::kInt || option.unit == "bytes" || option.path.ends_with("seed");
  return wide ? static_cast<double>(std::numeric_limits<int64_t>::max())
              : std::numeric_limits<int32_t>::max();
}

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

namespace {

// One node for one option: see Convert.
class Conversion {
 public:
  Conversion(const Option& option, const YamlNode& node, std::string& problem, std::string& advice)
      : option_(option), node_(node), problem_(problem), advice_(advice) {}

  std::optional<Json> Run() {
    if (node_.kind == YamlNode::Kind::kNull) return OfNull();
    // Python's word would be taken for a name.
    if (IsPlain(node_) && node_.text == "None") return OfNone();
    switch (option_.kind) {
      case Kind::kBool:
        return OfBool();
      case Kind::kInt:
        return OfInt();
      case Kind::kDouble:
        return IsPlain(node_) ? Ranged(ToDouble(node_.text)) : Fail();
      case Kind::kString:
        if (!IsScalar(node_)) return Fail();
        return Known(node_.text) ? std::optional<Json>(node_.text) : std::nullopt;
      case Kind::kStringList:
        return OfStrings();
      case Kind::kIntList:
        return OfItems([this](const YamlNode& item) {
          return IsPlain(item) ? Ranged(ToInt(item.text)) : Fail();
        });
      case Kind::kDoubleList:
        return OfItems([this](const YamlNode& item) {
          return IsPlain(item) ? Ranged(ToDouble(item.text)) : Fail();
        });
      case Kind::kMap:
        return node_.kind == YamlNode::Kind::kMap ? FreeValue(node_) : Fail();
      case Kind::kMapList:
        return OfItems([this](const YamlNode& item) {
          return item.kind == YamlNode::Kind::kMap ? FreeValue(item) : Fail();
        });
    }
    return Fail();
  }

 private:
  static bool IsScalar(const YamlNode& node) { return node.kind == YamlNode::Kind::kScalar; }
  static bool IsPlain(const YamlNode& node) { return IsScalar(node) && !node.quoted; }

  std::optional<Json> Fail() {
    problem_ =
        fmt::format("{}: expected {}, got {}", option_.path, KindName(option_), Shown(node_));
    return std::nullopt;
  }

  bool InRange(double value) {
    const bool low =
        option_.min && (option_.exclusive_min ? value <= *option_.min : value < *option_.min);
    const double most = LargestOf(option_);
    const bool high = value > most && (option_.max || std::isfinite(value));
    if (!low && !high) return true;
    std::string range =
        option_.min
            ? fmt::format("{} {}", option_.exclusive_min ? "above" : "at least", *option_.min)
            : "";
    if (option_.max || high)
      range += fmt::format("{}at most {}", range.empty() ? "" : " and ", most);
    const std::string got = IsScalar(node_) ? node_.text : fmt::format("{}", value);
    problem_ = fmt::format("{}: expected {}, got {}", option_.path, range, got);
    return false;
  }
  template <typename Number>
  std::optional<Json> Ranged(const std::optional<Number>& value) {
    if (!value) return Fail();
    return InRange(static_cast<double>(*value)) ? std::optional<Json>(*value) : std::nullopt;
  }

  // Whether it is one of the option's choices.
  bool Known(const std::string& value) {
    if (option_.choices.empty() ||
        std::find(option_.choices.begin(), option_.choices.end(), value) != option_.choices.end()) {
      return true;
    }
    problem_ = fmt::format("{}: expected one of {}, got \"{}\"", option_.path,
                           fmt::join(option_.choices, ", "), value);
    const auto answer = option_.answers.find(value);
    const std::string near = Closest(value, option_.choices);
    if (answer != option_.answers.end()) {
      advice_ = answer->second;
    } else if (!near.empty()) {
      advice_ = fmt::format("did you mean {}?", near);
    }
    return false;
  }

  std::optional<Json> OfNull() {
    if (option_.nullable) return Json(nullptr);
    if (option_.kind == Kind::kMap) return Json::object();
    if (option_.kind == Kind::kStringList || option_.kind == Kind::kMapList) advice_ = "write []";
    return Fail();
  }

  std::optional<Json> OfNone() {
    const bool list = option_.kind == Kind::kStringList || option_.kind == Kind::kIntList ||
                      option_.kind == Kind::kDoubleList || option_.kind == Kind::kMapList;
    advice_ = option_.nullable ? "write null"
              : list           ? "write []"
                     : "put it in quotes if it is a name; leave the key out for its default";
    return Fail();
  }

  std::optional<Json> OfBool() {
    if (!IsPlain(node_)) return Fail();
    if (const auto value = ToBool(node_.text)) return Json(*value);
    advice_ = "write true or false";
    return Fail();
  }

  std::optional<Json> OfInt() {
    if (!IsPlain(node_)) return Fail();
    const auto value = ToInt(node_.text);
    if (!value && LooksOctal(node_.text))
      advice_ = "leading zeros are refused, since YAML readers take them for octal";
    if (!value && node_.text.find_first_not_of("+-0123456789") == std::string::npos &&
        node_.text.size() > 18)
      advice_ = fmt::format("integers are at most {}", std::numeric_limits<int64_t>::max());
    return Ranged(value);
  }

  std::optional<Json> OfStrings() {
    if (IsScalar(node_)) {
      if (option_.or_one)
        return Known(node_.text) ? std::optional<Json>(Json::array({node_.text})) : std::nullopt;
      // What would be refused in a list, too, is answered at once.
      if (option_.answers.contains(node_.text) && !Known(node_.text)) return std::nullopt;
      advice_ = fmt::format("write [{}]", node_.text);
      return Fail();
    }
    return OfItems([this](const YamlNode& item) -> std::optional<Json> {
      if (!IsScalar(item)) return Fail();
      return Known(item.text) ? std::optional<Json>(item.text) : std::nullopt;
    });
  }

  template <typename F>
  std::optional<Json> OfItems(const F& convert) {
    if (node_.kind != YamlNode::Kind::kSequence) return Fail();
    Json list = Json::array();
    for (const YamlNode& item : node_.items) {
      const std::optional<Json> value = convert(item);
      if (!value) return std::nullopt;
      list.push_back(*value);
    }
    return list;
  }

  const Option& option_;
  const YamlNode& node_;
  std::string& problem_;
  std::string& advice_;
};

}  // namespace

std::optional<Json> Convert(const Option& option, const YamlNode& node, std::string& problem,
                            std::string& advice) {
  return Conversion(option, node, problem, advice).Run();
}

}  // namespace keel::options
