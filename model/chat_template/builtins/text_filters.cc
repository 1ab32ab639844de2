// Filters of one value: texts, numbers, JSON.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "common/python_space.h"
#include "common/text.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

template <std::string (*change)(std::string_view)>
Value Changed(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "the filter", {});
  return Value::String(change(ToText(value)), value.is_safe());
}

// jinja's title: words begin after white space, "-" and opening brackets.
std::string Titled(std::string_view text) {
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    NextCharacter(word, &first);
    out += UpperText(std::string_view(word).substr(0, first));
    out += LowerText(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = NextCharacter(text, &at);
    const bool begins =
        c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || IsPythonSpace(c);
    if (begins) {
      flush();
      out.append(text.substr(here, at - here));
    } else {
      word.append(text.substr(here, at - here));
    }
  }
  flush();
  return out;
}

Value Trim(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "trim", {"chars"});
  const std::string text = ToText(value);
  if (!bound.has(0) || bound[0].is_none()) {
    return Value::String(std::string(StripText(text, StripSide::kBoth)), value.is_safe());
  }
  const std::string_view chars = bound.Text(0, "");
  return Value::String(std::string(StripText(text, StripSide::kBoth, &chars)), value.is_safe());
}

Value AsString(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "string", {});
  return value.is_string() ? value : Value::String(ToText(value));
}

Value Safe(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "safe", {});
  return Value::String(ToText(value), true);
}

Value Escape(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "escape", {});
  return value.is_safe() ? value : Value::String(EscapedHtml(ToText(value)), true);
}

Value Replace(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "replace", {"old", "new", "count"}, 2);
  return Value::String(
      Replaced(ToText(value), ToText(bound[0]), ToText(bound[1]), bound.Integer(2, -1)));
}

Value Default(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "default", {"default_value", "boolean"});
  const bool keep = bound.Truth(1, false) ? value.truth() : !value.is_undefined();
  if (keep) return value;
  return bound.has(0) ? bound[0] : Value::String("");
}

Value Indent(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "indent", {"width", "first", "blank"});
  if (!value.is_string()) Fail("indent needs a string, not a " + std::string(TypeName(value)));
  std::string by(4, ' ');
  if (bound.has(0) && bound[0].is_string()) {
    by = bound[0].text();
  } else if (bound.has(0)) {
    const int64_t width = bound.Integer(0, 4);
    if (width > 10'000) Fail("indent: the width is too large");
    by.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.Truth(2, false);
  const std::string text = value.text() + "\n";
  std::string out = bound.Truth(1, false) ? by : "";
  bool first = true;
  for (std::string_view line : SplitLines(text)) {
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
    if (!first) out += "\n";
    if (!first && (blank || !line.empty())) out += by;
    out += line;
    first = false;
  }
  return Value::String(std::move(out), value.is_safe());
}

Value ToJson(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "tojson",
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form;
  form.ensure_ascii = bound.Truth(0, false);
  form.sort_keys = bound.Truth(3, false);
  if (bound.has(1) && !bound[1].is_none()) {
    if (bound[1].is_string()) {
      form.indent = bound[1].text();
    } else {
      const int64_t width = bound.Integer(1, 0);
      if (width > 1000) Fail("tojson: the indent is too large");
      form.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    form.item_separator = ",";
  }
  if (bound.has(2) && !bound[2].is_none()) {
    const ValueList parts = Iterate(bound[2]);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      Fail("tojson: 'separators' must be two strings");
    }
    form.item_separator = parts[0].text();
    form.key_separator = parts[1].text();
  }
  return Value::String(ToJsonText(value, form));
}

Value Format(Machine& machine, const Value& value, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    if (!arguments.positional.empty()) Fail("format takes names or positions, not both");
    auto dict = std::make_shared<Dict>();
    for (const auto& [name, item] : arguments.named) {
      dict->Set(Value::String(std::string(name)), item);
    }
    return FormatPercent(machine, Value::String(ToText(value)), Value::FromDict(std::move(dict)));
  }
  return FormatPercent(machine, Value::String(ToText(value)),
                       Value::Sequence(Kind::kTuple, arguments.positional));
}

// A number's text without the underscores that Python lets stand between two digits; false: one
// stands elsewhere.
bool WithoutUnderscores(std::string_view text, std::string* digits) {
  const auto digit_at = [&](size_t i) { return i < text.size() && IsDigit(text[i]); };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits->push_back(text[i]);
    } else if (i == 0 || !digit_at(i - 1) || !digit_at(i + 1)) {
      return false;
    }
  }
  return true;
}

// Python's float() of a text; false: it is none.
bool ReadFloat(std::string_view given, double* number) {
  std::string digits;
  if (!WithoutUnderscores(StripText(given, StripSide::kBoth), &digits)) return false;
  std::string_view text = digits;
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.starts_with('-') && digits[0] == '+') return false;
  // Which is C's way to tell one from another.
  if (text.find('(') != std::string_view::npos) return false;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (read.ptr != text.data() + text.size() || text.empty()) return false;
  // Beyond what a double holds is infinite, or nothing.
  if (read.ec == std::errc::result_out_of_range) *number = std::strtod(digits.c_str(), nullptr);
  return read.ec != std::errc::invalid_argument;
}

// Python reads the digits of all scripts.
void RefuseOtherDigits(const std::string& text, const char* filter) {
  static const TextPattern kOtherDigit = TextPattern::Fixed(R"((?![0-9])\d)");
  if (!IsAscii(text) && Found(kOtherDigit, text))
    Fail(std::string(filter) + ": digits beyond ASCII are not supported");
}

// Python's int(text, base); false: it is none.
bool ReadInteger(std::string_view given, int64_t base, Value* result) {
  std::string_view text = StripText(given, StripSide::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char letter = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int64_t prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (prefix != 0 && (base == 0 || base == prefix)) {
    base = prefix;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
    if (text.starts_with('0') && text.find_first_not_of("0_") != std::string_view::npos)
      return false;
  }
  if (base < 2 || base > 36) return false;
  std::string digits = negative ? "-" : "";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits.push_back(text[i]);
    } else if (i == 0 || text[i - 1] == '_' || i + 1 == text.size()) {
      return false;
    }
  }
  if (!text.empty() && text[0] == '-') return false;
  int64_t whole = 0;
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, whole, static_cast<int>(base));
  if (read.ptr != end) return false;
  if (read.ec == std::errc::result_out_of_range) Fail("int: the number is beyond 64 bits");
  *result = Value::Int(whole);
  return read.ec == std::errc();
}

bool Truncated(double number, Value* result) {
  if (!std::isfinite(number)) return false;
  if (!(std::abs(number) < 9.2e18)) Fail("int: the number is beyond 64 bits");
  *result = Value::Int(static_cast<int64_t>(number));
  return true;
}

Value ToInt(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "int", {"default", "base"});
  const Value otherwise = bound.has(0) ? bound[0] : Value::Int(0);
  if (value.is_undefined()) Fail(value.note());
  if (value.is_integral()) return Value::Int(value.integer());
  if (value.is_number() && std::isinf(value.real())) Fail("int of an infinite number");
  Value result;
  if (value.is_number()) return Truncated(value.real(), &result) ? result : otherwise;
  if (!value.is_string()) return otherwise;
  RefuseOtherDigits(value.text(), "int");
  if (ReadInteger(value.text(), bound.Integer(1, 10), &result)) return result;
  double number = 0;
  return ReadFloat(value.text(), &number) && Truncated(number, &result) ? result : otherwise;
}

Value ToFloat(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "float", {"default"});
  if (value.is_undefined()) Fail(value.note());
  if (value.is_number()) return Value::Float(value.real());
  double number = 0;
  if (value.is_string()) RefuseOtherDigits(value.text(), "float");
  if (value.is_string() && ReadFloat(value.text(), &number)) return Value::Float(number);
  return bound.has(0) ? bound[0] : Value::Float(0);
}

Value Absolute(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "abs", {});
  if (value.is_undefined()) Fail(value.note());
  if (value.Is(Kind::kFloat)) return Value::Float(std::abs(value.real()));
  if (!value.is_integral() || value.integer() == INT64_MIN) {
    Fail("abs of a " + std::string(TypeName(value)));
  }
  return Value::Int(std::abs(value.integer()));
}

// round(value, -digits): halves go to the even one.
Value RoundedToTens(const Value& value, int64_t digits) {
  int64_t unit = 1;
  for (int64_t i = 0; i < digits; ++i) unit *= 10;
  if (value.Is(Kind::kFloat)) {
    const long double tens = static_cast<long double>(value.real()) / unit;
    return Value::Float(static_cast<double>(std::rint(tens) * unit));
  }
  const int64_t rest = value.integer() % unit;
  const int64_t down = value.integer() - rest;
  const int64_t twice = 2 * std::abs(rest);
  const bool away = twice > unit || (twice == unit && down / unit % 2 != 0);
  int64_t rounded = 0;
  if (__builtin_add_overflow(down, !away ? 0 : rest < 0 ? -unit : unit, &rounded))
    Fail("round: the number is beyond 64 bits");
  return Value::Int(rounded);
}

Value Round(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "round", {"precision", "method"});
  const int64_t precision = bound.Integer(0, 0);
  const std::string_view method = bound.Text(1, "common");
  if (!value.is_number()) Fail("round of a " + std::string(TypeName(value)));
  if (precision < -18 || precision > 300) Fail("round: the precision must be from -18 to 300");
  if (precision < 0 && method == "common") return RoundedToTens(value, -precision);
  if (method == "common") {
    if (value.is_integral()) return Value::Int(value.integer());
    if (!std::isfinite(value.real())) return value;
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value.real());
    double number = 0;
    ReadFloat(buffer, &number);
    return Value::Float(number);
  }
  if (method != "ceil" && method != "floor") Fail("round: 'method' is common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.real() * scale;
  // Python's are integers, of which none is -0.
  return Value::Float(((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0) / scale);
}

Value FileSize(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "filesizeformat", {"binary"});
  double bytes = 0;
  if (value.is_number()) {
    bytes = value.real();
  } else if (value.is_string()) {
    RefuseOtherDigits(value.text(), "filesizeformat");
    if (!ReadFloat(value.text(), &bytes)) Fail("filesizeformat of a text that is no number");
  } else {
    Fail("filesizeformat of a " + std::string(TypeName(value)) + " that is no number");
  }
  const bool binary = bound.Truth(0, false);
  const long double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::String("1 Byte");
  if (bytes < static_cast<double>(base)) {
    Value whole;
    if (!Truncated(bytes, &whole)) Fail("filesizeformat of an infinite number");
    return Value::String(ToText(whole) + " Bytes");
  }
  static constexpr std::array<const char*, 8> kPrefixes = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  size_t prefix = 0;
  long double unit = base * base;
  for (; !(bytes < unit) && prefix + 1 < kPrefixes.size(); ++prefix) unit *= base;
  char text[400];
  const double shown = static_cast<double>(base) * bytes / static_cast<double>(unit);
  const char* const letter = binary && prefix == 0 ? "K" : kPrefixes[prefix];
  std::snprintf(text, sizeof text, "%.1f %s%sB", shown, letter, binary ? "i" : "");
  return Value::String(text);
}

constexpr FilterEntry kTextFilters[] = {
    {"tojson", ToJson},
    {"trim", Trim},
    {"string", AsString},
    {"default", Default, false},
    {"d", Default, false},
    {"safe", Safe},
    {"replace", Replace},
    {"lower", Changed<LowerText>},
    {"upper", Changed<UpperText>},
    {"capitalize", Changed<CapitalizeText>},
    {"title", Changed<Titled>},
    {"indent", Indent},
    {"format", Format},
    {"int", ToInt},
    {"float", ToFloat},
    {"abs", Absolute},
    {"round", Round},
    {"filesizeformat", FileSize},
    {"escape", Escape},
    {"e", Escape},
};

}  // namespace

const FilterEntry* FindTextFilter(std::string_view name) {
  for (const FilterEntry& entry : kTextFilters) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

const FilterEntry* FindFilter(std::string_view name) {
  const FilterEntry* found = FindTextFilter(name);
  for (const auto& find : {FindSequenceFilter, FindLayoutFilter, FindWordFilter, FindHtmlFilter}) {
    if (found == nullptr) found = find(name);
  }
  return found;
}

}  // namespace keel::model::jinja
