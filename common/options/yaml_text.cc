#include "common/options/yaml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

namespace keel::options {

namespace {

// Shortest text that reads back to the same double, as readers of YAML 1.1 do, too, to whom 1e-08
// is no number.
std::string NumberText(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".n") == std::string::npos)
    text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

// JSON's quotes, which are YAML's too, with every character escaped that is not Printable: a
// terminal would act on it, and YAML does not allow most of them as they are. All have four hex
// digits; other characters stay, since JSON's pairs of escapes for them are none of YAML's.
std::string Quoted(const std::string& text) {
  const std::string json = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const auto byte = [&](size_t i) {
      return at + i < json.size() ? static_cast<unsigned char>(json[at + i]) : 0u;
    };
    unsigned code = 0;
    size_t length = 1;
    if (byte(0) == 0x7f) {
      code = 0x7f;
    } else if (byte(0) == 0xc2 && byte(1) < 0xa0) {
      code = byte(1);
      length = 2;
    } else if (byte(0) == 0xe2 && (byte(1) == 0x80 || byte(1) == 0x81)) {
      const unsigned wide = 0x2000u | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
      length = 3;
      if ((wide >= 0x2028 && wide <= 0x202e) || (wide >= 0x2066 && wide <= 0x2069)) code = wide;
    }
    if (code != 0) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out.append(json, at, length);
    }
    at += length;
  }
  return out;
}

// Quoted unless no reader of YAML, of any version, can take it for anything but a string.
std::string YamlText(const std::string& text) {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  static constexpr std::string_view kWords[] = {"true", "false", "null", "none", "yes",
                                                "no",   "on",    "off",  "y",    "n"};
  const auto same = [&](std::string_view word) {
    return std::equal(text.begin(), text.end(), word.begin(), word.end(),
                      [](char a, char b) { return (a | 0x20) == b; });
  };
  const bool plain =
      !text.empty() && kLetters.find(text[0]) != std::string_view::npos &&
      text.find_first_not_of(std::string(kLetters) + "0123456789_/.-") == std::string::npos &&
      std::none_of(std::begin(kWords), std::end(kWords), same);
  return plain ? text : Quoted(text);
}

std::string YamlScalar(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  if (value.is_number()) return NumberText(value.get<double>());
  return YamlText(value.get<std::string>());
}

}  // namespace

std::string YamlFlow(const Json& value) {
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const Json& item : value) items.push_back(YamlFlow(item));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
  if (value.is_object()) {
    std::vector<std::string> items;
    for (const auto& [key, item] : value.items())
      items.push_back(YamlText(key) + ": " + YamlFlow(item));
    return fmt::format("{{{}}}", fmt::join(items, ", "));
  }
  return YamlScalar(value);
}

}  // namespace keel::options
