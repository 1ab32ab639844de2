// Methods of strings.
#include <algorithm>
#include <optional>

#include "common/text.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/unicode/code_points.h"

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
    return Pieces(self, from_right ? SplitAtSpaceFromRight(self.text(), most)
                                   : SplitAtSpace(self.text(), most));
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

// The part of a text that find(part, start, end) and its like look at.
struct Window {
  std::string_view text;
  int64_t start = 0;  // in characters
};

// Nothing: the start is behind the end, where not even "" is found.
std::optional<Window> WindowOf(const Value& self, const BoundArguments& bound) {
  if (!bound.has(1)) return Window{self.text(), 0};
  const int64_t length = CountCharacters(self.text());
  const auto place = [&](size_t index, int64_t otherwise) {
    const int64_t at = bound.Integer(index, otherwise);
    return at < 0 ? std::max<int64_t>(at + length, 0) : at;
  };
  const int64_t start = place(1, 0);
  const int64_t end = std::min(place(2, length), length);
  if (start > end) return std::nullopt;
  const auto byte_at = [&](int64_t characters) {
    size_t at = 0;
    for (int64_t i = 0; i < characters; ++i) NextCharacter(self.text(), &at);
    return at;
  };
  const size_t begin = byte_at(start);
  return Window{std::string_view(self.text()).substr(begin, byte_at(end) - begin), start};
}

template <bool at_end>
Value BeginsOrEnds(Machine&, const Value& self, const Arguments& arguments) {
  const char* name = at_end ? "endswith" : "startswith";
  const BoundArguments bound(arguments, name, {"/prefix", "/start", "/end"}, 1);
  const std::optional<Window> window = WindowOf(self, bound);
  const auto matches = [&](std::string_view part) {
    return window && (at_end ? window->text.ends_with(part) : window->text.starts_with(part));
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
Value SelfChanged(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "the method", {});
  return Value::String(change(self.text()), self.is_safe());
}

Value ReplaceParts(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "replace", {"/old", "/new", "/count"}, 2);
  return Value::String(
      Replaced(self.text(), bound.Text(0, ""), bound.Text(1, ""), bound.Integer(2, -1)),
      self.is_safe());
}

Value JoinParts(Machine& machine, const Value& self, const Arguments& arguments) {
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
  const BoundArguments bound(arguments, "find or index", {"/part", "/start", "/end"}, 1);
  const std::string_view part = bound.Text(0, "");
  const std::optional<Window> window = WindowOf(self, bound);
  const int64_t place = window ? PlaceOf(window->text, part, last) : -1;
  if (must && place < 0) Fail("the string that index() looks for is not there");
  return Value::Int(place < 0 ? -1 : window->start + place);
}

Value CountParts(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "count", {"/part", "/start", "/end"}, 1);
  const std::string_view part = bound.Text(0, "");
  const std::optional<Window> window = WindowOf(self, bound);
  if (!window) return Value::Int(0);
  if (part.empty()) return Value::Int(CountCharacters(window->text) + 1);
  int64_t count = 0;
  size_t at = 0;
  for (; (at = window->text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return Value::Int(count);
}

Value Lines(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "splitlines", {"keepends"});
  return Pieces(self, SplitLines(self.text(), bound.Truth(0, false)));
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

Value FormatMap(Machine& machine, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "format_map", {"/map"}, 1);
  if (!bound[0].Is(Kind::kDict)) Fail("format_map needs a dict");
  Arguments fields;
  for (const auto& [name, value] : bound[0].dict().entries) {
    if (name.is_string()) fields.named.emplace_back(name.text(), value);
  }
  return FormatBraces(machine, self, fields);
}

// How much there is to add to a text for it to have the width, and what to add.
struct Padding {
  int64_t missing;
  std::string_view fill;

  std::string Times(int64_t count) const {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += fill;
    return text;
  }
};

Padding PaddingOf(Machine& machine, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "center or just", {"/width", "/fillchar"}, 1);
  const std::string_view fill = bound.Text(1, " ");
  if (CountCharacters(fill) != 1) Fail("the character to fill with must be one");
  if (bound[0].is_none()) Fail("the width must be an integer");
  const int64_t width = std::max<int64_t>(bound.Integer(0, 0), 0);
  const int64_t missing = std::max<int64_t>(width - CountCharacters(self.text()), 0);
  machine.Charge(static_cast<size_t>(missing) * fill.size());
  return {missing, fill};
}

Value JustBoth(Machine& machine, const Value& self, const Arguments& arguments) {
  const Padding padding = PaddingOf(machine, self, arguments);
  // As Python splits an odd number: to the left where the width is odd, too.
  const int64_t width = padding.missing + CountCharacters(self.text());
  const int64_t left = padding.missing / 2 + (padding.missing & width & 1);
  return Piece(self, padding.Times(left) + self.text() + padding.Times(padding.missing - left));
}

Value JustLeft(Machine& machine, const Value& self, const Arguments& arguments) {
  const Padding padding = PaddingOf(machine, self, arguments);
  return Piece(self, self.text() + padding.Times(padding.missing));
}

Value JustRight(Machine& machine, const Value& self, const Arguments& arguments) {
  const Padding padding = PaddingOf(machine, self, arguments);
  return Piece(self, padding.Times(padding.missing) + self.text());
}

Value ZeroFill(Machine& machine, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "zfill", {"/width"}, 1);
  if (bound[0].is_none()) Fail("the width must be an integer");
  const std::string& text = self.text();
  const int64_t width = std::max<int64_t>(bound.Integer(0, 0), 0);
  const int64_t missing = std::max<int64_t>(width - CountCharacters(text), 0);
  machine.Charge(static_cast<size_t>(missing));
  const bool sign = text.starts_with('+') || text.starts_with('-');
  const size_t at = sign ? 1 : 0;
  return Piece(
      self, text.substr(0, at) + std::string(static_cast<size_t>(missing), '0') + text.substr(at));
}

Value ExpandTabs(Machine& machine, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "expandtabs", {"tabsize"});
  if (bound.has(0) && bound[0].is_none()) Fail("expandtabs needs an integer, not None");
  const int64_t size = bound.Integer(0, 8);
  std::string out;
  int64_t column = 0;
  for (size_t at = 0; at < self.text().size();) {
    const char32_t c = NextCharacter(self.text(), &at);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      machine.Charge(static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      AppendCharacter(c, &out);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return Piece(self, out);
}

// Most classes of characters beyond ASCII are not known here: such text is refused.
const std::string& AsciiOf(const Value& self, const Arguments& arguments, std::string_view name) {
  const BoundArguments bound(arguments, name, {});
  if (IsAscii(self.text())) return self.text();
  Fail(std::string(name) + " of text beyond ASCII is not supported");
}

bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsAlphanumeric(char c) { return IsLetter(c) || IsDigit(c); }

template <bool (*is)(char)>
Value IsAll(Machine&, const Value& self, const Arguments& arguments) {
  const std::string& text = AsciiOf(self, arguments, "a test of all characters");
  return Value::Bool(!text.empty() && std::all_of(text.begin(), text.end(), is));
}

template <bool upper>
Value IsCased(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "islower or isupper", {});
  return Value::Bool(IsOfCase(self.text(), upper));
}

// Every word begins with a capital, which nothing else has.
Value IsTitle(Machine&, const Value& self, const Arguments& arguments) {
  bool cased = false;
  bool within = false;
  for (char c : AsciiOf(self, arguments, "istitle")) {
    if ((IsUpper(c) && within) || (IsLower(c) && !within)) return Value::Bool(false);
    within = IsLetter(c);
    cased |= within;
  }
  return Value::Bool(cased);
}

Value IsIdentifier(Machine&, const Value& self, const Arguments& arguments) {
  const std::string& text = AsciiOf(self, arguments, "isidentifier");
  return Value::Bool(
      !text.empty() && !IsDigit(text[0]) &&
      std::all_of(text.begin(), text.end(), [](char c) { return IsAlphanumeric(c) || c == '_'; }));
}

Value IsAllAscii(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "isascii", {});
  return Value::Bool(IsAscii(self.text()));
}

Value IsAllPrintable(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "isprintable", {});
  const std::u32string all = ToCharacters(self.text());
  return Value::Bool(std::all_of(all.begin(), all.end(), IsPrintable));
}

Value IsAllSpace(Machine&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(arguments, "isspace", {});
  return Value::Bool(!self.text().empty() && StripText(self.text(), StripSide::kBoth).empty());
}

// str.title: a word begins behind whatever is no letter.
Value Title(Machine&, const Value& self, const Arguments& arguments) {
  std::string text = AsciiOf(self, arguments, "title");
  bool within = false;
  for (char& c : text) {
    if (IsLower(c) && !within)
      c = static_cast<char>(c - 'a' + 'A');
    else if (IsUpper(c) && within)
      c = static_cast<char>(c - 'A' + 'a');
    within = IsLetter(c);
  }
  return Piece(self, text);
}

Value SwapCase(Machine&, const Value& self, const Arguments& arguments) {
  std::string text = AsciiOf(self, arguments, "swapcase");
  for (char& c : text) {
    if (IsLetter(c)) c = static_cast<char>(c ^ 0x20);
  }
  return Piece(self, text);
}

Value CaseFold(Machine&, const Value& self, const Arguments& arguments) {
  return Piece(self, LowerText(AsciiOf(self, arguments, "casefold")));
}

constexpr MethodEntry kTextMethods[] = {
    {Kind::kString, "split", Split<false>},
    {Kind::kString, "rsplit", Split<true>},
    {Kind::kString, "strip", Strip<StripSide::kBoth>},
    {Kind::kString, "lstrip", Strip<StripSide::kLeft>},
    {Kind::kString, "rstrip", Strip<StripSide::kRight>},
    {Kind::kString, "startswith", BeginsOrEnds<false>},
    {Kind::kString, "endswith", BeginsOrEnds<true>},
    {Kind::kString, "removeprefix", WithoutAffix<false>},
    {Kind::kString, "removesuffix", WithoutAffix<true>},
    {Kind::kString, "lower", SelfChanged<LowerText>},
    {Kind::kString, "upper", SelfChanged<UpperText>},
    {Kind::kString, "capitalize", SelfChanged<CapitalizeText>},
    {Kind::kString, "replace", ReplaceParts},
    {Kind::kString, "join", JoinParts},
    {Kind::kString, "find", FindPart<false, false>},
    {Kind::kString, "rfind", FindPart<true, false>},
    {Kind::kString, "index", FindPart<false, true>},
    {Kind::kString, "rindex", FindPart<true, true>},
    {Kind::kString, "count", CountParts},
    {Kind::kString, "splitlines", Lines},
    {Kind::kString, "partition", Partition<false>},
    {Kind::kString, "rpartition", Partition<true>},
    {Kind::kString, "format", FormatBraces},
    {Kind::kString, "format_map", FormatMap},
    {Kind::kString, "center", JustBoth},
    {Kind::kString, "ljust", JustLeft},
    {Kind::kString, "rjust", JustRight},
    {Kind::kString, "zfill", ZeroFill},
    {Kind::kString, "expandtabs", ExpandTabs},
    {Kind::kString, "title", Title},
    {Kind::kString, "swapcase", SwapCase},
    {Kind::kString, "casefold", CaseFold},
    {Kind::kString, "isspace", IsAllSpace},
    {Kind::kString, "isdigit", IsAll<IsDigit>},
    {Kind::kString, "isdecimal", IsAll<IsDigit>},
    {Kind::kString, "isnumeric", IsAll<IsDigit>},
    {Kind::kString, "isalpha", IsAll<IsLetter>},
    {Kind::kString, "isalnum", IsAll<IsAlphanumeric>},
    {Kind::kString, "islower", IsCased<false>},
    {Kind::kString, "isupper", IsCased<true>},
    {Kind::kString, "istitle", IsTitle},
    {Kind::kString, "isidentifier", IsIdentifier},
    {Kind::kString, "isascii", IsAllAscii},
    {Kind::kString, "isprintable", IsAllPrintable},
    {Kind::kString, "encode", nullptr},
    {Kind::kString, "maketrans", nullptr},
    {Kind::kString, "translate", nullptr},
};

}  // namespace

const MethodEntry* FindTextMethod(std::string_view name) {
  for (const MethodEntry& entry : kTextMethods) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
