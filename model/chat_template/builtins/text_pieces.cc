#include "model/chat_template/builtins/text_pieces.h"

#include <algorithm>

#include "common/python_space.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/value.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

bool EndsLine(char32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// A part of what becomes a list, which has a limit.
void Add(std::vector<std::string_view>* pieces, std::string_view piece) {
  if (pieces->size() >= kMaxWeight) Fail("a text falls into too many parts");
  pieces->push_back(piece);
}

}  // namespace

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = NextCharacter(text, &at);
    if (!EndsLine(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    Add(&lines, text.substr(begin, (keep_ends ? at : here) - begin));
    begin = at;
  }
  if (begin < text.size()) Add(&lines, text.substr(begin));
  return lines;
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most) {
  std::vector<std::string_view> words;
  text = StripText(text, StripSide::kLeft);
  while (!text.empty()) {
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      Add(&words, text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (IsPythonSpace(NextCharacter(text, &next))) break;
      end = next;
    }
    Add(&words, text.substr(0, end));
    text = StripText(text.substr(end), StripSide::kLeft);
  }
  return words;
}

std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t most) {
  std::vector<std::string_view> words = SplitAtSpace(text, -1);
  if (most < 0 || static_cast<int64_t>(words.size()) <= most) return words;
  // The words that are left over stay together, with what is between them and before them.
  const size_t rest = words.size() - static_cast<size_t>(most);
  const char* const end = words[rest - 1].data() + words[rest - 1].size();
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(rest));
  words.insert(words.begin(), text.substr(0, static_cast<size_t>(end - text.data())));
  return words;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t most, bool from_right) {
  std::vector<std::string_view> pieces;
  while (most < 0 || static_cast<int64_t>(pieces.size()) < most) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const size_t behind = at + separator.size();
    Add(&pieces, from_right ? text.substr(behind) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(behind);
  }
  Add(&pieces, text);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most) {
  std::string out;
  size_t at = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
    size_t found = at;
    size_t behind = at;
    if (from.empty()) {
      // Before every character and at the end.
      if (at > text.size()) break;
      out.append(to);
      if (at == text.size()) return out;
      NextCharacter(text, &behind);
      out.append(text, at, behind - at);
    } else {
      found = text.find(from, at);
      if (found == std::string_view::npos) break;
      out.append(text, at, found - at).append(to);
      behind = found + from.size();
    }
    at = behind;
  }
  return out.append(text, std::min(at, text.size()));
}

std::optional<ByteRange> Found(const TextPattern& pattern, std::string_view text, size_t at) {
  const auto found = pattern.Find(text, at);
  if (!found.ok()) Fail("a search for words, links or digits: " + found.status().message());
  return *found;
}

}  // namespace keel::model::jinja
