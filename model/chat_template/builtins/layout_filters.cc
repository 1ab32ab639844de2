// Filters that lay out what they are given: in rows and columns, in a width, for HTML and URLs.
#include <algorithm>

#include "common/text.h"
#include "model/chat_template/builtins/pretty_text.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

int64_t Positive(const BoundArguments& bound, size_t index, const char* filter) {
  const int64_t count = bound.Integer(index, 0);
  if (count < 1 || count > kMaxWeight) {
    Fail(std::string(filter) + " needs a number from 1 to " + std::to_string(kMaxWeight) +
         ", not " + std::to_string(count));
  }
  return count;
}

// Rows of so many items; the last one is filled up. As Jinja has it a row of 0 or fewer never is
// full: all items are in one, behind an empty one where it was to have 0.
Value Batch(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t wanted = bound.Integer(0, -1);
  ValueList items = Iterate(value);
  ValueList rows;
  if (wanted < 1) {
    if (wanted == 0 && !items.empty()) rows.push_back(Value::Sequence(Kind::kList, {}));
    if (!items.empty()) rows.push_back(Value::Sequence(Kind::kList, std::move(items)));
    return Value::Sequence(Kind::kGenerator, std::move(rows));
  }
  const auto size = static_cast<size_t>(Positive(bound, 0, "batch"));
  for (size_t at = 0; at < items.size(); at += size) {
    ValueList row;
    for (size_t i = at; i < std::min(at + size, items.size()); ++i) row.push_back(items[i]);
    if (bound.has(1) && !bound[1].is_none()) {
      machine.Step(static_cast<int64_t>(size - row.size()));
      row.resize(size, bound[1]);
    }
    rows.push_back(Value::Sequence(Kind::kList, std::move(row)));
  }
  return Value::Sequence(Kind::kGenerator, std::move(rows));
}

// So many columns of nearly the same length.
Value Columns(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "slice", {"slices", "fill_with"}, 1);
  const auto count = static_cast<size_t>(Positive(bound, 0, "slice"));
  machine.Step(static_cast<int64_t>(count));
  const ValueList items = Iterate(value);
  ValueList columns;
  size_t at = 0;
  for (size_t column = 0; column < count; ++column) {
    const bool longer = column < items.size() % count;
    ValueList own;
    for (size_t i = items.size() / count + (longer ? 1 : 0); i > 0; --i) own.push_back(items[at++]);
    if (!longer && bound.has(1) && !bound[1].is_none()) own.push_back(bound[1]);
    columns.push_back(Value::Sequence(Kind::kList, std::move(own)));
  }
  return Value::Sequence(Kind::kGenerator, std::move(columns));
}

Value Attribute(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "attr", {"name"}, 1);
  if (!bound[0].is_string()) Fail("attr needs a name");
  // An attribute alone, and never a dict's element.
  if (value.Is(Kind::kDict) && FindMethod(Kind::kDict, bound[0].text()) == nullptr) {
    return Value::MissingName(TypeName(value), bound[0].text());
  }
  return AttributeOf(value, bound[0].text());
}

Value Center(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "center", {"width"});
  const Value text = value.is_string() ? value : Value::String(ToText(value));
  Arguments width;
  width.positional.push_back(bound.has(0) ? bound[0] : Value::Int(80));
  return FindTextMethod("center")->call(machine, text, width);
}

Value Truncate(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  if (bound.has(0) && bound[0].is_none()) Fail("truncate: 'length' must be a number, not None");
  const Value length = bound.Number(0, 255);
  const std::string_view end = bound.Text(2, "...");
  const double leeway = bound.Number(3, 5).real();
  const int64_t end_length = CountCharacters(end);
  if (length.real() < static_cast<double>(end_length))
    Fail("truncate: the length is below that of the end");
  if (leeway < 0) Fail("truncate: the leeway is negative");
  if (static_cast<double>(Length(value)) <= length.real() + leeway) return value;
  if (!value.is_string()) Fail("truncate of a " + std::string(TypeName(value)));
  // A float will do as a length until a text has to be cut.
  if (!length.is_integral()) Fail("truncate: 'length' must be an integer, not a float");
  const auto kept = static_cast<size_t>(length.integer() - end_length);
  std::string text = FromCharacters(ToCharacters(value.text()).substr(0, kept));
  if (!bound.Truth(1, false)) text.resize(std::min(text.rfind(' '), text.size()));
  return Value::String(text + std::string(end), value.is_safe());
}

bool IsWord(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

std::string Quoted(const std::string& text, bool slash) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (char c : text) {
    if (IsWord(c) || c == '.' || c == '-' || c == '~' || (slash && c == '/')) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ' && !slash) {
      out.push_back('+');
    } else {
      out.append({'%', kHex[byte >> 4], kHex[byte & 15]});
    }
  }
  return out;
}

Value UrlEncode(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "urlencode", {});
  const bool list = value.Is(Kind::kDict) || value.is_sequence() || value.Is(Kind::kView) ||
                    value.Is(Kind::kGenerator);
  if (!list) return Value::String(Quoted(ToText(value), true));
  ValueList pairs;
  if (value.Is(Kind::kDict)) {
    for (const auto& [key, item] : value.dict().entries) {
      pairs.push_back(Value::Sequence(Kind::kTuple, {key, item}));
    }
  } else {
    pairs = Iterate(value);
  }
  std::string out;
  for (const Value& pair : pairs) {
    const ValueList both = Iterate(pair);
    if (both.size() != 2) Fail("urlencode: an item is not a pair");
    if (&pair != &pairs.front()) out.push_back('&');
    out += Quoted(ToText(both[0]), false) + "=" + Quoted(ToText(both[1]), false);
  }
  return Value::String(std::move(out));
}

Value ForceEscape(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "forceescape", {});
  return Value::String(EscapedHtml(ToText(value)), true);
}

Value Random(Machine&, const Value&, const Arguments&) {
  Fail("the filter 'random' is not supported: a prompt is the same each time");
}

Value Pretty(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "pprint", {});
  return Value::String(PrettyText(machine, value));
}

constexpr FilterEntry kLayoutFilters[] = {
    {"attr", Attribute},          {"batch", Batch},       {"slice", Columns},
    {"center", Center},           {"truncate", Truncate}, {"urlencode", UrlEncode},
    {"forceescape", ForceEscape}, {"pprint", Pretty},     {"random", Random},
};

}  // namespace

const FilterEntry* FindLayoutFilter(std::string_view name) {
  for (const FilterEntry& entry : kLayoutFilters) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
