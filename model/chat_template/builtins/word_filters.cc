// Filters that go by words: wordcount, and wordwrap as Python's textwrap has it.
#include <algorithm>

#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

// The chunks between which a line may break. textwrap's wordsep_re, and its wordsep_simple_re.
const TextPattern& Chunks(bool at_hyphens) {
  static const TextPattern kHyphens =
      TextPattern::Fixed(R"([\t\n\x0b\x0c\r ]+|(?<=[\w!"'&.,?])-{2,}(?=\w)|[^\t\n\x0b\x0c\r ]+?)"
                         R"((?:-(?:(?<=[^\d\W]{2}-)|(?<=[^\d\W]-[^\d\W]-))(?=[^\d\W]-?[^\d\W])|)"
                         R"((?=[\t\n\x0b\x0c\r ]|\z)|(?<=[\w!"'&.,?])(?=-{2,}\w)))");
  static const TextPattern kSpaces = TextPattern::Fixed(R"([\t\n\x0b\x0c\r ]+)");
  return at_hyphens ? kHyphens : kSpaces;
}

// The chunks of a line, the first one last, as they are taken from the end.
std::vector<std::string_view> ReversedChunks(Machine& machine, std::string_view line,
                                             bool at_hyphens) {
  std::vector<std::string_view> chunks;
  size_t at = 0;
  while (const auto found = Found(Chunks(at_hyphens), line, at)) {
    machine.Step();
    const auto begin = static_cast<size_t>(found->begin);
    if (begin > at) chunks.push_back(line.substr(at, begin - at));
    at = static_cast<size_t>(found->end);
    chunks.push_back(line.substr(begin, at - begin));
  }
  if (at < line.size()) chunks.push_back(line.substr(at));
  std::reverse(chunks.begin(), chunks.end());
  return chunks;
}

struct Wrapping {
  int64_t width;
  bool break_long_words;
  bool break_on_hyphens;
};

// How many characters a text has, of which only so many are of interest.
int64_t CharactersUpTo(std::string_view text, int64_t most) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size() && count < most; ++count) NextCharacter(text, &at);
  return count;
}

// Where so many characters of a text end.
size_t BytesOf(std::string_view text, int64_t characters) {
  size_t at = 0;
  for (int64_t i = 0; i < characters && at < text.size(); ++i) NextCharacter(text, &at);
  return at;
}

// Puts what fits of a chunk that no line has room for on this one.
void BreakLongWord(const Wrapping& wrap, int64_t left, std::vector<std::string_view>* chunks,
                   std::vector<std::string_view>* line) {
  std::string_view& chunk = chunks->back();
  if (!wrap.break_long_words) {
    if (!line->empty()) return;
    line->push_back(chunk);
    chunks->pop_back();
    return;
  }
  size_t end = BytesOf(chunk, left);
  if (wrap.break_on_hyphens && end < chunk.size()) {
    // Behind the last hyphen, where something else than hyphens is before it.
    const size_t hyphen = chunk.substr(0, end).rfind('-');
    if (hyphen != std::string_view::npos && hyphen > 0 &&
        chunk.substr(0, hyphen).find_first_not_of('-') != std::string_view::npos) {
      end = hyphen + 1;
    }
  }
  line->push_back(chunk.substr(0, end));
  chunk.remove_prefix(end);
}

bool IsBlank(std::string_view text) { return StripText(text, StripSide::kLeft).empty(); }

// textwrap.wrap of one line of the text; appends the lines that it becomes.
void WrapLine(Machine& machine, const Wrapping& wrap, bool at_hyphens, std::string_view text,
              std::vector<std::string>* lines) {
  std::vector<std::string_view> chunks = ReversedChunks(machine, text, at_hyphens);
  bool first = true;
  while (!chunks.empty()) {
    machine.Step();
    if (!first && IsBlank(chunks.back())) chunks.pop_back();
    std::vector<std::string_view> line;
    int64_t length = 0;
    while (!chunks.empty()) {
      // A word that is cut comes again and again: no more of it is looked at than is needed.
      const int64_t more = CharactersUpTo(chunks.back(), wrap.width + 1);
      if (length + more > wrap.width) {
        if (more > wrap.width) BreakLongWord(wrap, wrap.width - length, &chunks, &line);
        break;
      }
      line.push_back(chunks.back());
      chunks.pop_back();
      length += more;
    }
    if (!line.empty() && IsBlank(line.back())) line.pop_back();
    if (line.empty()) continue;
    first = false;
    lines->emplace_back();
    for (std::string_view chunk : line) lines->back() += chunk;
  }
}

Value WordWrap(Machine& machine, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "wordwrap",
                             {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  if (!value.is_string()) Fail("wordwrap needs a string, not a " + std::string(TypeName(value)));
  if (bound.has(0) && !bound[0].is_integral()) Fail("wordwrap: the width must be an integer");
  // No text is longer.
  const int64_t width = std::min(bound.Integer(0, 79), static_cast<int64_t>(kMaxTextBytes));
  const Wrapping wrap{width, bound.Truth(1, true), bound.Truth(3, true)};
  const bool given = bound.has(2) && !bound[2].is_none();
  const std::string_view between = given ? bound.Text(2, "") : "\n";
  // As textwrap: only true itself lets words break at hyphens.
  const bool at_hyphens = !bound.has(3) || (bound[3].Is(Kind::kBool) && bound[3].boolean());
  std::string out;
  bool first = true;
  for (std::string_view text : SplitLines(value.text())) {
    if (wrap.width <= 0) Fail("wordwrap: the width must be above 0");
    std::vector<std::string> lines;
    WrapLine(machine, wrap, at_hyphens, text, &lines);
    if (!first) out += between;
    first = false;
    for (const std::string& line : lines) {
      if (&line != &lines.front()) out += between;
      out += line;
      if (out.size() > kMaxTextBytes) Fail("a string is too long");
    }
  }
  return Value::String(std::move(out));
}

Value WordCount(Machine& machine, const Value& value, const Arguments& arguments) {
  static const TextPattern kWord = TextPattern::Fixed(R"(\w+)");
  const BoundArguments bound(arguments, "wordcount", {});
  const std::string text = ToText(value);
  int64_t count = 0;
  for (size_t at = 0; const auto found = Found(kWord, text, at);) {
    machine.Step();
    at = static_cast<size_t>(found->end);
    ++count;
  }
  return Value::Int(count);
}

constexpr FilterEntry kWordFilters[] = {{"wordcount", WordCount}, {"wordwrap", WordWrap}};

}  // namespace

const FilterEntry* FindWordFilter(std::string_view name) {
  for (const FilterEntry& entry : kWordFilters) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
