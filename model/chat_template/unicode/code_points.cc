#include "model/chat_template/unicode/code_points.h"

#include <algorithm>

#include "common/python_space.h"
#include "model/chat_template/unicode/letter_case_table.h"
#include "model/chat_template/unicode/unicode_tables.h"

namespace keel::model::jinja {
namespace {

constexpr char32_t kCapitalSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;

char32_t MapByRuns(char32_t c, std::span<const CaseRun> runs) {
  auto run = std::upper_bound(runs.begin(), runs.end(), c,
                              [](char32_t value, const CaseRun& r) { return value < r.first; });
  // Runs of stride 2 interleave, so the one that holds the character may be a few before.
  for (int back = 0; back < 8 && run != runs.begin(); ++back) {
    --run;
    if (c <= run->last && (c - run->first) % static_cast<char32_t>(run->stride) == 0) {
      return static_cast<char32_t>(static_cast<int32_t>(c) + run->delta);
    }
  }
  return c;
}

const char* FindWhole(char32_t c, std::span<const WholeCase> table) {
  auto found = std::lower_bound(table.begin(), table.end(), c,
                                [](const WholeCase& w, char32_t value) { return w.from < value; });
  return found != table.end() && found->from == c ? found->to : nullptr;
}

char32_t LowerOf(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return MapByRuns(c, LowerRuns());
}

void AppendUpper(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  } else if (const char* whole = FindWhole(c, UpperWhole())) {
    out->append(whole);
  } else {
    AppendCharacter(MapByRuns(c, UpperRuns()), out);
  }
}

bool IsIn(std::span<const SteppedRange> ranges, char32_t c) {
  const auto next = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const SteppedRange& range) { return value < range.first; });
  if (next == ranges.begin()) return false;
  const SteppedRange& range = *std::prev(next);
  return c <= range.last && (c - range.first) % range.step == 0;
}

bool IsCased(char32_t c) {
  return IsIn(LowerRanges(), c) || IsIn(UpperRanges(), c) || IsIn(TitleRanges(), c);
}

// Whether characters[i] ends a word: a letter comes before it and none after it, whatever marks are
// between.
bool EndsWord(const std::u32string& characters, size_t i) {
  size_t before = i, after = i + 1;
  while (before > 0 && IsIn(IgnorableRanges(), characters[before - 1])) --before;
  while (after < characters.size() && IsIn(IgnorableRanges(), characters[after])) ++after;
  return before > 0 && IsCased(characters[before - 1]) &&
         (after == characters.size() || !IsCased(characters[after]));
}

// The lower case of characters[i]: a capital sigma that ends a word becomes the final one.
void AppendLower(const std::u32string& characters, size_t i, std::string* out) {
  const char32_t c = characters[i];
  if (c == 0x130) {
    out->append("i\u0307");
  } else if (c == kCapitalSigma && EndsWord(characters, i)) {
    AppendCharacter(kFinalSigma, out);
  } else {
    AppendCharacter(LowerOf(c), out);
  }
}

}  // namespace

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

char32_t NextCharacter(std::string_view text, size_t* at) {
  const auto first = static_cast<unsigned char>(text[(*at)++]);
  if (first < 0x80) return first;
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  char32_t c = first & (0x3fU >> more);
  for (int i = 0; i < more && *at < text.size(); ++i) {
    c = (c << 6) | (static_cast<unsigned char>(text[(*at)++]) & 0x3fU);
  }
  return c;
}

void AppendCharacter(char32_t c, std::string* text) {
  const auto put = [&](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | (c >> 6));
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3f));
    put(0x80 | ((c >> 6) & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

std::u32string ToCharacters(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) characters.push_back(NextCharacter(text, &at));
  return characters;
}

std::string FromCharacters(std::u32string_view characters) {
  std::string text;
  text.reserve(characters.size());
  for (char32_t c : characters) AppendCharacter(c, &text);
  return text;
}

bool IsPrintable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c != 0x7f;
  const auto ranges = NotPrintableRanges();
  auto next = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return next == ranges.begin() || c > std::prev(next)->last;
}

std::string_view StripText(std::string_view text, StripSide side, const std::string_view* chars) {
  const std::u32string wanted = chars != nullptr ? ToCharacters(*chars) : std::u32string();
  const auto strips = [&](char32_t c) {
    return chars != nullptr ? wanted.find(c) != std::u32string::npos : IsPythonSpace(c);
  };
  size_t begin = 0;
  while (side != StripSide::kRight && begin < text.size()) {
    size_t next = begin;
    if (!strips(NextCharacter(text, &next))) break;
    begin = next;
  }
  size_t end = text.size();
  while (side != StripSide::kLeft && end > begin) {
    size_t start = end - 1;
    while (start > begin && (text[start] & 0xc0) == 0x80) --start;
    size_t at = start;
    if (!strips(NextCharacter(text, &at))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

bool IsOfCase(std::string_view text, bool upper) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCharacter(text, &at);
    if (IsIn(upper ? LowerRanges() : UpperRanges(), c) || IsIn(TitleRanges(), c)) return false;
    any |= IsIn(upper ? UpperRanges() : LowerRanges(), c);
  }
  return any;
}

std::string LowerText(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (IsAscii(text)) {
    for (char c : text) out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    return out;
  }
  const std::u32string characters = ToCharacters(text);
  for (size_t i = 0; i < characters.size(); ++i) AppendLower(characters, i, &out);
  return out;
}

std::string UpperText(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) AppendUpper(NextCharacter(text, &at), &out);
  return out;
}

std::string CapitalizeText(std::string_view text) {
  std::string out;
  const std::u32string characters = ToCharacters(text);
  for (size_t i = 0; i < characters.size(); ++i) {
    if (i > 0) {
      AppendLower(characters, i, &out);
    } else if (const char* title = FindWhole(characters[0], TitleWhole())) {
      out.append(title);
    } else {
      AppendUpper(characters[0], &out);
    }
  }
  return out;
}

}  // namespace keel::model::jinja
