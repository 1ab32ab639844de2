// Methods of strings, lists and dicts. A name that Python has and this table gives no function is
// refused when it is called.
#include <algorithm>

#include "model/chat_template/code_points.h"
#include "model/chat_template/evaluator.h"
#include "model/chat_template/text_form.h"
#include "model/chat_template/text_pieces.h"

namespace keel::model::jinja {
namespace {

// Names that begin with "/" are parameters without a name, as Python's builtins have them.
Value Piece(const Value& self, std::string_view text) {
  return Value::String(std::string(text), self.is_safe());
}

Value Pieces(const Value& self, const std::vector<std::string_view>& pieces) {
  ValueList items;
  for (std::string_view piece : pieces) items.push_back(Piece(self, piece));
  return Value::Sequence(Kind::kList, std::move(items));
}

template <bool from_right>
Value Split(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "split", {"sep", "maxsplit"});
  const int64_t most = bound.Integer(1, -1);
  if (!bound.has(0) || bound[0].is_none()) {
    if (from_right && most >= 0) Fail("rsplit at white space with a maximum is not supported");
    return Pieces(self, SplitAtSpace(self.text(), most));
  }
  const std::string_view separator = bound.Text(0, "");
  if (separator.empty()) Fail("split: the separator is empty");
  return Pieces(self, SplitAt(self.text(), separator, most, from_right));
}

template <StripSide side>
Value Strip(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "strip", {"/chars"});
  if (!bound.has(0) || bound[0].is_none()) return Piece(self, StripText(self.text(), side));
  const std::string_view chars = bound.Text(0, "");
  return Piece(self, StripText(self.text(), side, &chars));
}

template <bool at_end>
Value BeginsOrEnds(Machine&, const Value& self, const Arguments& arguments) {
  const char* name = at_end ? "endswith" : "startswith";
  const BoundArguments bound(arguments, name, {"/prefix"}, 1);
  const std::string_view text = self.text();
  const auto matches = [&](std::string_view part) {
    return at_end ? text.ends_with(part) : text.starts_with(part);
  };
  if (!bound[0].Is(Kind::kTuple)) return Value::Bool(matches(bound.Text(0, "")));
  for (const Value& part : bound[0].items()) {
    if (!part.is_string()) Fail(std::string(name) + " needs strings");
    if (matches(part.text())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool at_end>
Value WithoutAffix(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "removeprefix or removesuffix", {"/affix"}, 1);
  std::string_view text = self.text();
  const std::string_view affix = bound.Text(0, "");
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Piece(self, text);
}

template <std::string (*change)(std::string_view)>
Value Changed(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "the method", {});
  return Value::String(change(self.text()), self.is_safe());
}

Value Replace(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "replace", {"/old", "/new", "/count"}, 2);
  return Value::String(
      Replaced(self.text(), bound.Text(0, ""), bound.Text(1, ""), bound.Integer(2, -1)),
      self.is_safe());
}

Value Join(Machine& machine, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "join", {"/parts"}, 1);
  machine.Step(bound[0].weight());
  std::string text;
  bool first = true;
  for (const Value& part : Iterate(bound[0])) {
    if (!part.is_string()) Fail("join needs strings, found a " + std::string(TypeName(part)));
    if (text.size() > kMaxTextBytes) Fail("a string is too long");
    text.append(first ? "" : self.text()).append(part.text());
    first = false;
  }
  return Value::String(std::move(text), self.is_safe());
}

// The place of a part in characters; -1 where it is not.
int64_t PlaceOf(std::string_view text, std::string_view part, bool last) {
  const size_t at = last ? text.rfind(part) : text.find(part);
  return at == std::string_view::npos ? -1 : CountCharacters(text.substr(0, at));
}

template <bool last, bool must>
Value FindPart(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "find or index", {"/part"}, 1);
  const int64_t place = PlaceOf(self.text(), bound.Text(0, ""), last);
  if (must && place < 0) Fail("the string that index() looks for is not there");
  return Value::Int(place);
}

Value CountParts(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "count", {"/part"}, 1);
  const std::string_view part = bound.Text(0, "");
  if (part.empty()) return Value::Int(CountCharacters(self.text()) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = self.text().find(part, at)) != std::string::npos; at += part.size()) {
    ++count;
  }
  return Value::Int(count);
}

Value Lines(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "splitlines", {});
  return Pieces(self, SplitLines(self.text()));
}

template <bool last>
Value Partition(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "partition", {"/separator"}, 1);
  const std::string_view separator = bound.Text(0, "");
  const std::string_view text = self.text();
  if (separator.empty()) Fail("partition: the separator is empty");
  const size_t at = last ? text.rfind(separator) : text.find(separator);
  std::vector<std::string_view> parts;
  if (at != std::string_view::npos) {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  } else if (last) {
    parts = {"", "", text};
  } else {
    parts = {text, "", ""};
  }
  return Value::Sequence(Kind::kTuple, Pieces(self, parts).items());
}

Value IsAllSpace(Machine&, const Value& self, const Arguments&) {
  return Value::Bool(!self.text().empty() && StripText(self.text(), StripSide::kBoth).empty());
}

Value IsAllDigits(Machine&, const Value& self, const Arguments&) {
  if (!IsAscii(self.text())) Fail("isdigit of text beyond ASCII is not supported");
  const std::string& text = self.text();
  return Value::Bool(!text.empty() && text.find_first_not_of("0123456789") == std::string::npos);
}

ValueList Keys(const Dict& dict) {
  ValueList keys;
  for (const auto& [key, value] : dict.entries) keys.push_back(key);
  return keys;
}

Value DictKeys(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "keys", {});
  return Value::View(Keys(self.dict()), "dict_keys");
}

Value DictValues(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "values", {});
  ValueList values;
  for (const auto& [key, value] : self.dict().entries) values.push_back(value);
  return Value::View(std::move(values), "dict_values");
}

Value DictItems(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "items", {});
  ValueList items;
  for (const auto& [key, value] : self.dict().entries) {
    items.push_back(Value::Sequence(Kind::kTuple, {key, value}));
  }
  return Value::View(std::move(items), "dict_items");
}

Value DictGet(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "get", {"/key", "/default"}, 1);
  if (const Value* found = self.dict().Find(bound[0])) return *found;
  return bound.has(1) ? bound[1] : Value::None();
}

Value Same(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "copy", {});
  return self;
}

Value ListIndex(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "index", {"/value"}, 1);
  const ValueList& items = self.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(items[i], bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  Fail("the value that index() looks for is not in the list");
}

Value ListCount(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "count", {"/value"}, 1);
  const ValueList& items = self.items();
  return Value::Int(std::count_if(items.begin(), items.end(),
                                  [&](const Value& item) { return Equal(item, bound[0]); }));
}

Value LoopCycle(Machine&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) Fail("loop.cycle() has nothing to cycle through");
  const auto index = static_cast<size_t>(std::max<int64_t>(self.loop().index0, 0));
  return arguments.positional[index % arguments.positional.size()];
}

constexpr MethodEntry kMethods[] = {
    {Kind::kString, "split", Split<false>},
    {Kind::kString, "rsplit", Split<true>},
    {Kind::kString, "strip", Strip<StripSide::kBoth>},
    {Kind::kString, "lstrip", Strip<StripSide::kLeft>},
    {Kind::kString, "rstrip", Strip<StripSide::kRight>},
    {Kind::kString, "startswith", BeginsOrEnds<false>},
    {Kind::kString, "endswith", BeginsOrEnds<true>},
    {Kind::kString, "removeprefix", WithoutAffix<false>},
    {Kind::kString, "removesuffix", WithoutAffix<true>},
    {Kind::kString, "lower", Changed<LowerText>},
    {Kind::kString, "upper", Changed<UpperText>},
    {Kind::kString, "capitalize", Changed<CapitalizeText>},
    {Kind::kString, "replace", Replace},
    {Kind::kString, "join", Join},
    {Kind::kString, "find", FindPart<false, false>},
    {Kind::kString, "rfind", FindPart<true, false>},
    {Kind::kString, "index", FindPart<false, true>},
    {Kind::kString, "rindex", FindPart<true, true>},
    {Kind::kString, "count", CountParts},
    {Kind::kString, "splitlines", Lines},
    {Kind::kString, "partition", Partition<false>},
    {Kind::kString, "rpartition", Partition<true>},
    {Kind::kString, "format", FormatBraces},
    {Kind::kString, "isspace", IsAllSpace},
    {Kind::kString, "isdigit", IsAllDigits},
    {Kind::kDict, "keys", DictKeys},
    {Kind::kDict, "values", DictValues},
    {Kind::kDict, "items", DictItems},
    {Kind::kDict, "get", DictGet},
    {Kind::kDict, "copy", Same},
    {Kind::kList, "copy", Same},
    {Kind::kList, "index", ListIndex},
    {Kind::kList, "count", ListCount},
    {Kind::kTuple, "index", ListIndex},
    {Kind::kTuple, "count", ListCount},
    {Kind::kLoop, "cycle", LoopCycle},
};

constexpr MethodEntry kUnsupported[] = {
    {Kind::kString, "casefold", nullptr},
    {Kind::kString, "center", nullptr},
    {Kind::kString, "encode", nullptr},
    {Kind::kString, "expandtabs", nullptr},
    {Kind::kString, "format_map", nullptr},
    {Kind::kString, "isalnum", nullptr},
    {Kind::kString, "isalpha", nullptr},
    {Kind::kString, "isascii", nullptr},
    {Kind::kString, "isdecimal", nullptr},
    {Kind::kString, "isidentifier", nullptr},
    {Kind::kString, "islower", nullptr},
    {Kind::kString, "isnumeric", nullptr},
    {Kind::kString, "isprintable", nullptr},
    {Kind::kString, "istitle", nullptr},
    {Kind::kString, "isupper", nullptr},
    {Kind::kString, "ljust", nullptr},
    {Kind::kString, "maketrans", nullptr},
    {Kind::kString, "rjust", nullptr},
    {Kind::kString, "swapcase", nullptr},
    {Kind::kString, "title", nullptr},
    {Kind::kString, "translate", nullptr},
    {Kind::kString, "zfill", nullptr},
    {Kind::kDict, "fromkeys", nullptr},
    {Kind::kRange, "index", nullptr},
    {Kind::kRange, "count", nullptr},
    {Kind::kInt, "bit_length", nullptr},
    {Kind::kInt, "to_bytes", nullptr},
    {Kind::kInt, "conjugate", nullptr},
    {Kind::kInt, "bit_count", nullptr},
    {Kind::kInt, "real", nullptr},
    {Kind::kInt, "imag", nullptr},
    {Kind::kInt, "numerator", nullptr},
    {Kind::kInt, "denominator", nullptr},
    {Kind::kFloat, "is_integer", nullptr},
    {Kind::kFloat, "real", nullptr},
    {Kind::kFloat, "imag", nullptr},
    {Kind::kFloat, "hex", nullptr},
    {Kind::kFloat, "conjugate", nullptr},
    {Kind::kFloat, "as_integer_ratio", nullptr},
};

}  // namespace

const MethodEntry* FindMethod(Kind kind, std::string_view name) {
  // Most attributes are a message's keys: a dict's few methods are looked at alone.
  if (kind == Kind::kDict) {
    constexpr std::string_view kFirst = "kvigcf";
    if (name.empty() || kFirst.find(name[0]) == std::string_view::npos) return nullptr;
  }
  for (const MethodEntry& entry : kMethods) {
    if (entry.kind == kind && entry.name == name) return &entry;
  }
  for (const MethodEntry& entry : kUnsupported) {
    if (entry.kind == kind && entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
