// "%" of strings and str.format, for the conversions that templates use. Others are refused.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "common/text.h"
#include "model/chat_template/code_points.h"
#include "model/chat_template/runtime.h"
#include "model/chat_template/text_form.h"

namespace keel::model::jinja {
namespace {

constexpr int kMaxWidth = 1000;

// How one value is written: [[fill]align][sign][0][width][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '\0';
  bool zeros = false;
  bool commas = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

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

std::string Number(const Spec& spec, const Value& value) {
  std::string text;
  if (spec.type == 'd') {
    text = std::to_string(value.integer());
  } else if (spec.type == 'x' || spec.type == 'X') {
    const int64_t number = value.integer();
    const uint64_t size =
        number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    text = spec.type == 'x' ? fmt::format("{:x}", size) : fmt::format("{:X}", size);
    if (number < 0) text.insert(0, "-");
  } else {
    const char format[] = {'%', '.', '*', spec.type, '\0'};
    char buffer[1600];
    std::snprintf(buffer, sizeof buffer, format, spec.precision < 0 ? 6 : spec.precision,
                  value.real());
    text = buffer;
  }
  if (spec.sign != '\0' && spec.sign != '-' && text[0] != '-') text.insert(0, 1, spec.sign);
  const size_t sign_size = IsDigit(text[0]) ? 0 : 1;
  if (spec.commas) {
    size_t end = std::min(text.find('.'), text.size());
    while (end > sign_size + 3) text.insert(end -= 3, ",");
  }
  Spec padded = spec;
  if (spec.zeros && spec.align == '\0') {
    padded.align = '=';
    padded.fill = "0";
  }
  return Padded(padded, std::move(text), '>', sign_size);
}

std::string Text(const Spec& spec, std::string text, char natural) {
  if (spec.precision >= 0 && CountCharacters(text) > spec.precision) {
    text = FromCharacters(ToCharacters(text).substr(0, static_cast<size_t>(spec.precision)));
  }
  return Padded(spec, std::move(text), natural);
}

// One conversion of "%", behind the sign.
Spec ReadPercent(std::string_view text, size_t* at) {
  Spec spec;
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (c == '-') {
      spec.align = '<';
    } else if (c == '0') {
      spec.zeros = true;
    } else if (c == '+' || (c == ' ' && spec.sign == '\0')) {
      spec.sign = c;
    } else {
      break;
    }
  }
  spec.width = ReadNumber(text, at);
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    spec.precision = ReadNumber(text, at);
  }
  if (*at >= text.size()) Fail("a '%' at the end of a format");
  spec.type = text[(*at)++];
  return spec;
}

std::string Convert(Spec spec, const Value& value) {
  std::string repr;
  switch (spec.type) {
    case 's':
      return Text(spec, ToText(value), '>');
    case 'r':
      AppendRepr(value, &repr);
      return Text(spec, std::move(repr), '>');
    case 'i':
    case 'u':
      spec.type = 'd';
      [[fallthrough]];
    case 'd': {
      if (!value.is_number()) Fail("'%d' needs a number, not a " + std::string(TypeName(value)));
      if (!(std::abs(value.real()) < 9.2e18)) Fail("'%d' of a number beyond 64 bits");
      if (spec.precision >= 0) Fail("'%d' with a precision is not supported");
      return Number(spec,
                    value.is_integral() ? value : Value::Int(static_cast<int64_t>(value.real())));
    }
    case 'x':
    case 'X':
      if (!value.is_integral())
        Fail("'%x' needs an integer, not a " + std::string(TypeName(value)));
      return Number(spec, value);
    case 'f':
    case 'e':
    case 'g':
      if (!value.is_number()) Fail("'%f' needs a number, not a " + std::string(TypeName(value)));
      return Number(spec, value);
    default:
      Fail("the conversion '%" + Printable(std::string(1, spec.type)) + "' is not supported");
  }
}

Spec ReadBraces(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
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
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) {
    spec.sign = text[at++];
  }
  if (at < text.size() && text[at] == '0') spec.zeros = true;
  spec.width = ReadNumber(text, &at);
  if (at < text.size() && text[at] == ',') {
    spec.commas = true;
    ++at;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    spec.precision = ReadNumber(text, &at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) Fail("the format '" + Printable(text, 40) + "' is not supported");
  return spec;
}

std::string FormatOne(const Value& value, std::string_view format) {
  if (format.empty()) return ToText(value);
  Spec spec = ReadBraces(format);
  if (value.is_string() && (spec.type == 's' || spec.type == '\0') && !spec.commas && !spec.zeros) {
    return Text(spec, value.text(), '<');
  }
  if (value.Is(Kind::kInt) && spec.precision < 0) {
    if (spec.type == '\0') spec.type = 'd';
    if (spec.type == 'd' || spec.type == 'x' || spec.type == 'X') return Number(spec, value);
  }
  if (value.is_number() && !value.Is(Kind::kBool) && (spec.type == 'f' || spec.type == 'e')) {
    return Number(spec, value);
  }
  Fail("the format '" + Printable(format, 40) + "' of a " + std::string(TypeName(value)) +
       " is not supported");
}

}  // namespace

Value FormatPercent(Machine& machine, const Value& format, const Value& arguments) {
  const std::string& text = format.text();
  std::string out;
  size_t used = 0;
  bool by_name = false;
  const bool tuple = arguments.Is(Kind::kTuple);
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
    Value value;
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
    } else {
      if (used >= (tuple ? arguments.items().size() : 1)) Fail("too few values for a format");
      value = tuple ? arguments.items()[used] : arguments;
      ++used;
    }
    out += Convert(ReadPercent(text, &at), value);
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
  }
  const bool may_rest = by_name || arguments.Is(Kind::kDict) || arguments.Is(Kind::kList) ||
                        arguments.Is(Kind::kRange);
  if (!may_rest && used < (tuple ? arguments.items().size() : 1)) {
    Fail("not all values are used by the format");
  }
  machine.Charge(out.size());
  return Value::String(std::move(out), format.is_safe());
}

Value FormatBraces(Machine& machine, const Value& format, const Arguments& arguments) {
  const std::string& text = format.text();
  std::string out;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool doubled = at + 1 < text.size() && text[at + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      out.push_back(c);
      at += 2;
      continue;
    }
    if (c == '}') Fail("format: a '}' by itself");
    if (c != '{') {
      out.push_back(c);
      ++at;
      continue;
    }
    machine.Step();
    const size_t end = text.find_first_of("{}", at + 1);
    if (end == std::string::npos) Fail("format: a '{' without its '}'");
    if (text[end] == '{') Fail("format: fields within fields are not supported");
    std::string_view field = std::string_view(text).substr(at + 1, end - at - 1);
    at = end + 1;
    std::string_view spec;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      if (field.size() != mark + 2) Fail("format: a conversion is one letter");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    Value value;
    size_t place = 0;
    if (field.empty() || IsDigit(field[0])) {
      place = field.empty() ? automatic++ : static_cast<size_t>(ReadNumber(field, &place));
      if (place >= arguments.positional.size()) Fail("format: too few values");
      value = arguments.positional[place];
    } else {
      bool found = false;
      for (const auto& [name, item] : arguments.named) {
        if (name != field) continue;
        value = item;
        found = true;
      }
      if (!found) Fail("format: no value for '" + Printable(field, 40) + "'");
    }
    if (conversion == 'r' || conversion == 's') {
      std::string form;
      conversion == 'r' ? AppendRepr(value, &form) : AppendText(value, &form);
      value = Value::String(std::move(form));
    } else if (conversion != '\0') {
      Fail("format: the conversion '!" + Printable(std::string(1, conversion)) +
           "' is not supported");
    }
    out += FormatOne(value, spec);
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
  }
  machine.Charge(out.size());
  return Value::String(std::move(out), format.is_safe());
}

}  // namespace keel::model::jinja
