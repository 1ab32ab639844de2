// "%" of strings and str.format.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include "common/text.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

constexpr int kMaxWidth = 1000;

// How one value is written: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '\0';
  bool alternate = false;
  bool zeros = false;
  char grouping = '\0';
  int width = 0;
  int precision = -1;
  char type = '\0';
};

[[noreturn]] void Unknown(char type, const Value& value) {
  Fail("the format '" + Printable(std::string(1, type)) + "' is none of a " +
       std::string(TypeName(value)));
}

int ReadNumber(std::string_view text, size_t* at) {
  int number = 0;
  while (*at < text.size() && IsDigit(text[*at])) {
    number = number * 10 + (text[(*at)++] - '0');
    if (number > kMaxWidth) Fail("a width or a precision is above " + std::to_string(kMaxWidth));
  }
  return number;
}

std::string Padded(const Spec& spec, std::string text, char natural, size_t sign_size = 0) {
  const int64_t missing = spec.width - CountCharacters(text);
  if (missing <= 0) return text;
  const auto repeat = [&](int64_t count) {
    std::string padding;
    for (int64_t i = 0; i < count; ++i) padding += spec.fill;
    return padding;
  };
  switch (spec.align == '\0' ? natural : spec.align) {
    case '<':
      return text + repeat(missing);
    case '^':
      return repeat(missing / 2) + text + repeat(missing - missing / 2);
    case '=':
      return text.insert(sign_size, repeat(missing));
    default:
      return repeat(missing) + text;
  }
}

std::string Text(const Spec& spec, std::string text, char natural) {
  if (spec.precision >= 0 && CountCharacters(text) > spec.precision) {
    text = FromCharacters(ToCharacters(text).substr(0, static_cast<size_t>(spec.precision)));
  }
  return Padded(spec, std::move(text), natural);
}

std::string Printf(bool alternate, char type, int precision, double number) {
  const std::string format = std::string(alternate ? "%#.*" : "%.*") + type;
  char buffer[1600];
  std::snprintf(buffer, sizeof buffer, format.c_str(), precision, number);
  return buffer;
}

// A float to so many digits without a type: as 'g', but that it never looks like a whole number.
std::string General(bool alternate, int precision, double number) {
  const int digits = std::max(precision, 1);
  if (!std::isfinite(number)) return Printf(false, 'g', digits, number);
  std::string text = Printf(alternate, 'e', digits - 1, number);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  const bool scientific = exponent < -4 || exponent >= digits - 1;
  std::string tail = scientific ? text.substr(e) : "";
  text = scientific ? text.substr(0, e) : Printf(alternate, 'f', digits - 1 - exponent, number);
  if (!alternate && text.find('.') != std::string::npos) {
    text.resize(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text + tail;
}

std::string FloatDigits(const Spec& spec, double number) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case '\0':
      return spec.precision < 0 ? FloatText(number) : General(spec.alternate, precision, number);
    case '%':
      return Printf(spec.alternate, 'f', precision, number * 100) + "%";
    case 'n':
      return Printf(spec.alternate, 'g', precision, number);
    default:
      return Printf(spec.alternate, spec.type, precision, number);
  }
}

std::string IntegerDigits(char type, uint64_t size) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", size);
    case 'X':
      return fmt::format("{:X}", size);
    case 'o':
      return fmt::format("{:o}", size);
    case 'b':
      return fmt::format("{:b}", size);
    default:
      return std::to_string(size);
  }
}

// Separators between every three digits, or four of those that are no decimal ones; zeros before
// them until there are `width` characters.
std::string Grouped(const Spec& spec, const std::string& digits, size_t width) {
  const size_t size =
      spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b' ? 4 : 3;
  size_t end = 0;
  while (end < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[end])) != 0 &&
         (size == 4 || digits[end] != 'e')) {
    ++end;
  }
  std::string whole = digits.substr(0, end);
  const std::string rest = digits.substr(end);
  const auto grouped = [&] {
    std::string text = whole;
    for (size_t at = text.size(); at > size;) text.insert(at -= size, 1, spec.grouping);
    return text;
  };
  while (!whole.empty() && grouped().size() + rest.size() < width) whole.insert(0, 1, '0');
  return grouped() + rest;
}

// A number whose type fits it.
std::string Number(const Spec& spec, const Value& value, bool whole) {
  bool negative = false;
  std::string digits;
  std::string sign;
  if (whole) {
    const int64_t number = value.integer();
    negative = number < 0;
    digits = IntegerDigits(spec.type, negative ? uint64_t{0} - static_cast<uint64_t>(number)
                                               : static_cast<uint64_t>(number));
  } else {
    negative = std::signbit(value.real()) && !std::isnan(value.real());
    digits = FloatDigits(spec, std::abs(value.real()));
  }
  if (negative) {
    sign = "-";
  } else if (spec.sign != '\0' && spec.sign != '-') {
    sign = std::string(1, spec.sign);
  }
  if (whole && spec.alternate && std::string_view("xXob").find(spec.type) != std::string::npos) {
    sign += std::string("0") + spec.type;
  }
  Spec padded = spec;
  const bool zeros = spec.zeros && spec.align == '\0';
  if (zeros) {
    padded.align = '=';
    padded.fill = "0";
  }
  if (spec.grouping != '\0') {
    const auto width = static_cast<size_t>(spec.width);
    digits = Grouped(spec, digits, zeros && width > sign.size() ? width - sign.size() : 0);
  }
  return Padded(padded, sign + digits, '>', sign.size());
}

std::string CharacterOf(const Value& value) {
  std::string text;
  const int64_t code = value.integer();
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    Fail("'c' of " + std::to_string(code) + ", which stands for no character");
  }
  AppendCharacter(static_cast<char32_t>(code), &text);
  return text;
}

// One conversion of "%", behind the sign; `next` gives the value of a "*".
template <typename Next>
Spec ReadPercent(std::string_view text, size_t* at, const Next& next) {
  Spec spec;
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (c == '-') {
      spec.align = '<';
    } else if (c == '0') {
      spec.zeros = true;
    } else if (c == '#') {
      spec.alternate = true;
    } else if (c == '+' || (c == ' ' && spec.sign == '\0')) {
      spec.sign = c;
    } else if (c != ' ') {
      break;
    }
  }
  const auto size = [&] {
    if (*at >= text.size() || text[*at] != '*') return ReadNumber(text, at);
    ++*at;
    const Value given = next();
    if (!given.is_integral()) Fail("'*' of a format needs an integer");
    if (given.integer() > kMaxWidth || given.integer() < -kMaxWidth) {
      Fail("a width or a precision is above " + std::to_string(kMaxWidth));
    }
    return static_cast<int>(given.integer());
  };
  spec.width = size();
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = -spec.width;
  }
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    spec.precision = std::max(size(), 0);
  }
  if (*at < text.size() && std::string_view("hlL").find(text[*at]) != std::string_view::npos) ++*at;
  if (*at >= text.size()) Fail("a '%' at the end of a format");
  spec.type = text[(*at)++];
  return spec;
}

std::string ConvertWhole(Spec spec, const Value& value) {
  const bool decimal = spec.type == 'd';
  if (!(decimal ? value.is_number() : value.is_integral())) Unknown(spec.type, value);
  if (!(std::abs(value.real()) < 9.2e18)) Fail("'%d' of a number beyond 64 bits");
  const Value number = value.is_integral() ? value : Value::Int(static_cast<int64_t>(value.real()));
  if (spec.precision < 0) return Number(spec, number, true);
  // So many digits at least, and then the width.
  Spec digits = spec;
  const int64_t sign =
      (number.integer() < 0 || spec.sign != '\0' ? 1 : 0) + (spec.alternate && !decimal ? 2 : 0);
  digits.width = spec.precision + static_cast<int>(sign);
  digits.zeros = true;
  digits.align = '\0';
  return Padded(spec, Number(digits, number, true), '>');
}

std::string Convert(Spec spec, const Value& value) {
  std::string repr;
  switch (spec.type) {
    case 's':
      return Text(spec, ToText(value), '>');
    case 'r':
    case 'a':
      spec.type == 'r' ? AppendRepr(value, &repr) : AppendAscii(value, &repr);
      return Text(spec, std::move(repr), '>');
    case 'i':
    case 'u':
      spec.type = 'd';
      [[fallthrough]];
    case 'd':
    case 'x':
    case 'X':
    case 'o':
      return ConvertWhole(spec, value);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
      if (!value.is_number()) Unknown(spec.type, value);
      return Number(spec, value, false);
    case 'c':
      if (value.is_integral()) return Padded(spec, CharacterOf(value), '>');
      if (!value.is_string() || CountCharacters(value.text()) != 1) Unknown('c', value);
      return Padded(spec, value.text(), '>');
    default:
      Fail("'%" + Printable(std::string(1, spec.type)) + "' is no conversion");
  }
}

Spec ReadBraces(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto takes = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != std::string_view::npos;
  };
  if (!text.empty()) {
    size_t second = 0;
    NextCharacter(text, &second);
    if (second < text.size() && is_align(text[second])) {
      spec.fill = text.substr(0, second);
      spec.align = text[second];
      at = second + 1;
    } else if (is_align(text[0])) {
      spec.align = text[at++];
    }
  }
  if (takes("+- ")) spec.sign = text[at++];
  if (takes("#")) spec.alternate = text[at++] == '#';
  if (takes("0")) spec.zeros = true;
  spec.width = ReadNumber(text, &at);
  if (takes(",_")) spec.grouping = text[at++];
  if (takes(".")) {
    ++at;
    if (!takes("0123456789")) Fail("a format has no precision behind its '.'");
    spec.precision = ReadNumber(text, &at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) Fail("'" + Printable(text, 40) + "' is no format");
  return spec;
}

std::string FormatText(Spec spec, const Value& value) {
  if (spec.type != 's' && spec.type != '\0') Unknown(spec.type, value);
  if (spec.sign != '\0' || spec.alternate || spec.grouping != '\0' || spec.align == '=') {
    Fail("the format of a string has no sign, no '#', no separators and no '='");
  }
  if (spec.zeros && spec.fill == " ") spec.fill = "0";
  return Text(spec, value.text(), '<');
}

std::string FormatOne(const Value& value, std::string_view format) {
  if (format.empty()) return ToText(value);
  if (!value.is_string() && !value.is_number()) {
    Fail("a " + std::string(TypeName(value)) + " has no format '" + Printable(format, 40) + "'");
  }
  Spec spec = ReadBraces(format);
  if (value.is_string()) return FormatText(spec, value);
  const std::string_view whole_types = "bcdnoxX";
  const std::string_view float_types = "eEfFgGn%";
  const bool is_whole = value.is_integral() && (spec.type == '\0' || whole_types.find(spec.type) !=
                                                                         std::string_view::npos);
  if (!is_whole && spec.type != '\0' && float_types.find(spec.type) == std::string_view::npos) {
    Unknown(spec.type, value);
  }
  if (!is_whole) return Number(spec, value, false);
  if (spec.precision >= 0) Fail("the format of an integer has no precision");
  if (spec.grouping != '\0' && (spec.type == 'c' || spec.type == 'n' ||
                                (spec.grouping == ',' && spec.type != '\0' && spec.type != 'd'))) {
    Fail("the format '" + Printable(std::string(1, spec.type)) + "' has no separators");
  }
  if (spec.type == 'c') {
    if (spec.sign != '\0' || spec.alternate) Fail("the format 'c' has no sign and no '#'");
    return Padded(spec, CharacterOf(value), '<');
  }
  return Number(spec, value, true);
}

// str.format of one string and what is in its fields.
class BraceFormatter {
 public:
  BraceFormatter(Machine& machine, const Arguments& arguments, bool safe)
      : machine_(machine), arguments_(arguments), safe_(safe) {}

  std::string Format(std::string_view text, int depth) {
    if (depth > 2) Fail("format: fields are nested too deep");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      const bool doubled = at + 1 < text.size() && text[at + 1] == c;
      if (c != '{' && c != '}') {
        out.push_back(c);
        ++at;
      } else if (doubled) {
        out.push_back(c);
        at += 2;
      } else if (c == '}') {
        Fail("format: a '}' by itself");
      } else {
        machine_.Step();
        const size_t end = FieldEnd(text, at + 1);
        out += Field(text.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      }
      if (out.size() > kMaxTextBytes) Fail("a string is too long");
    }
    return out;
  }

 private:
  static size_t FieldEnd(std::string_view text, size_t at) {
    for (int open = 0; at < text.size(); ++at) {
      if (text[at] == '{') ++open;
      if (text[at] == '}' && open-- == 0) return at;
    }
    Fail("format: a '{' without its '}'");
  }

  // name[!conversion][:format]
  std::string Field(std::string_view field, int depth) {
    size_t end = 0;
    for (bool element = false; end < field.size(); ++end) {
      if (field[end] == '[') element = true;
      if (field[end] == ']') element = false;
      if (!element && (field[end] == '!' || field[end] == ':')) break;
      if (field[end] == '{') Fail("format: a '{' in the name of a field");
    }
    Value value = Named(field.substr(0, end));
    machine_.Step(value.weight());
    if (end < field.size() && field[end] == '!') {
      if (end + 1 >= field.size() || (end + 2 < field.size() && field[end + 2] != ':')) {
        Fail("format: a conversion is one letter");
      }
      value = Converted(value, field[end + 1]);
      end += 2;
    }
    const std::string spec =
        end < field.size() ? Format(field.substr(end + 1), depth + 1) : std::string();
    if (!safe_) return FormatOne(value, spec);
    if (!value.is_safe()) return EscapedHtml(FormatOne(value, spec));
    if (!spec.empty()) Fail("format: safe text takes no format");
    return value.text();
  }

  // The first part is an argument; what follows are its attributes and elements.
  Value Named(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = Argument(name.substr(0, at));
    while (at < name.size()) {
      const bool element = name[at] == '[';
      if (!element && name[at] != '.') Fail("format: '" + Printable(name, 40) + "' is no field");
      const size_t begin = at + 1;
      at = element ? name.find(']', begin) : std::min(name.find_first_of(".[", begin), name.size());
      if (at == std::string_view::npos) Fail("format: a '[' without its ']'");
      const std::string_view part = name.substr(begin, at - begin);
      if (part.empty()) Fail("format: an empty name in '" + Printable(name, 40) + "'");
      if (element) ++at;
      if (value.is_string()) machine_.Step(value.weight());
      const bool digits = part.find_first_not_of("0123456789") == std::string_view::npos;
      if (!element) {
        value = AttributeOf(value, part);
      } else if (digits && part.size() < 10) {
        int64_t index = 0;
        for (char c : part) index = index * 10 + (c - '0');
        value = ElementOf(value, Value::Int(index));
      } else {
        value = ElementOf(value, Value::String(std::string(part)));
      }
    }
    return value;
  }

  const Value& Argument(std::string_view name) {
    if (name.empty() || IsDigit(name[0])) {
      const int way = name.empty() ? 1 : 2;
      if (numbering_ != 0 && numbering_ != way) {
        Fail("format: fields with and without numbers do not go together");
      }
      numbering_ = way;
      size_t end = 0;
      const size_t place =
          name.empty() ? automatic_++ : static_cast<size_t>(ReadNumber(name, &end));
      if (end != name.size()) Fail("format: no value for '" + Printable(name, 40) + "'");
      if (place >= arguments_.positional.size()) Fail("format: too few values");
      return arguments_.positional[place];
    }
    for (const auto& [there, value] : arguments_.named) {
      if (there == name) return value;
    }
    Fail("format: no value for '" + Printable(name, 40) + "'");
  }

  static Value Converted(const Value& value, char conversion) {
    std::string form;
    switch (conversion) {
      case 'r':
        AppendRepr(value, &form);
        break;
      case 's':
        AppendText(value, &form);
        break;
      case 'a':
        AppendAscii(value, &form);
        break;
      default:
        Fail("format: '!" + Printable(std::string(1, conversion)) + "' is no conversion");
    }
    return Value::String(std::move(form), conversion == 's' && value.is_safe());
  }

  Machine& machine_;
  const Arguments& arguments_;
  const bool safe_;
  size_t automatic_ = 0;
  int numbering_ = 0;  // 1: fields without numbers so far, 2: with numbers
};

}  // namespace

Value FormatPercent(Machine& machine, const Value& format, const Value& arguments) {
  const std::string& text = format.text();
  std::string out;
  size_t used = 0;
  bool by_name = false;
  const bool tuple = arguments.Is(Kind::kTuple);
  const auto next_value = [&] {
    if (used >= (tuple ? arguments.items().size() : 1)) Fail("too few values for a format");
    return tuple ? arguments.items()[used++] : (++used, arguments);
  };
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '%') {
      const size_t next = std::min(text.find('%', at), text.size());
      out.append(text, at, next - at);
      at = next;
      continue;
    }
    ++at;
    machine.Step();
    if (at < text.size() && text[at] == '%') {
      out.push_back('%');
      ++at;
      continue;
    }
    std::optional<Value> value;
    if (at < text.size() && text[at] == '(') {
      const size_t end = text.find(')', at);
      if (end == std::string::npos) Fail("a '%(' without its ')'");
      if (!arguments.Is(Kind::kDict)) Fail("'%(name)' needs a dict");
      const std::string name = text.substr(at + 1, end - at - 1);
      const Value* found = arguments.dict().Find(std::string_view(name));
      if (found == nullptr) Fail("'%(" + name + ")': the dict has no such key");
      value = *found;
      by_name = true;
      at = end + 1;
    }
    const Spec spec = ReadPercent(text, &at, next_value);
    if (!value) value = next_value();
    machine.Step(value->weight());
    const std::string piece = Convert(spec, *value);
    const bool escapes = format.is_safe() && !value->is_safe() && !value->is_number();
    out += escapes ? EscapedHtml(piece) : piece;
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
  }
  const bool may_rest = by_name || arguments.is_undefined() || arguments.Is(Kind::kDict) ||
                        arguments.Is(Kind::kList) || arguments.Is(Kind::kRange);
  if (!may_rest && used < (tuple ? arguments.items().size() : 1)) {
    Fail("not all values are used by the format");
  }
  machine.Charge(out.size());
  return Value::String(std::move(out), format.is_safe());
}

Value FormatBraces(Machine& machine, const Value& format, const Arguments& arguments) {
  std::string out = BraceFormatter(machine, arguments, format.is_safe()).Format(format.text(), 1);
  machine.Charge(out.size());
  return Value::String(std::move(out), format.is_safe());
}

}  // namespace keel::model::jinja
