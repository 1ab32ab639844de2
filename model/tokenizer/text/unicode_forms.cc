#include "model/tokenizer/text/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

// A character on its way. `change` says how many more characters there are for it than before: 0
// for the first of a decomposition, 1 for the others, -1 for what two became by composing.
struct Moving {
  utf8proc_int32_t value = 0;
  int change = 0;
  int combining = 0;
};

// Characters that combine, decompose or compose, but came after Unicode 9, whose tables
// `tokenizers` normalizes by: to it, and so to the vocabularies made with it, they are signs like
// any other.
constexpr std::array<std::pair<utf8proc_int32_t, utf8proc_int32_t>, 41> kAfterUnicode9 = {
    {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
     {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
     {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
     {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50},
     {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
     {0x11839, 0x1183A}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
     {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
     {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1},
     {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C},
     {0x1FBF0, 0x1FBF9}}};

bool IsAfterUnicode9(utf8proc_int32_t c) {
  const auto range =
      std::ranges::lower_bound(kAfterUnicode9, c, {}, [](const auto& r) { return r.second; });
  return range != kAfterUnicode9.end() && c >= range->first;
}

// Characters from here on are never taken for settled ones.
constexpr uint32_t kSettledEnd = 0x30000;

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// The character that the two compose to; -1 when they do not.
utf8proc_int32_t Composed(utf8proc_int32_t first, utf8proc_int32_t second) {
  std::array<utf8proc_int32_t, 2> pair = {first, second};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (IsAfterUnicode9(first) || IsAfterUnicode9(second)) return -1;
  if (utf8proc_normalize_utf32(pair.data(), 2, options) != 1) return -1;
  return IsAfterUnicode9(pair[0]) ? -1 : pair[0];
}

void Decompose(uint32_t code_point, bool compatibility, std::vector<Moving>* out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  if (IsAfterUnicode9(c)) {
    out->push_back({c, 0, 0});
    return;
  }
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  int boundary = 0;
  const auto count = utf8proc_decompose_char(
      c, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const utf8proc_int32_t part = parts[static_cast<size_t>(i)];
    out->push_back({part, i == 0 ? 0 : 1, CombiningClass(part)});
  }
}

// Marks between two starters, in the order of their classes.
void Reorder(std::vector<Moving>* text) {
  for (auto at = text->begin(); at != text->end();) {
    at = std::find_if(at, text->end(), [](const Moving& c) { return c.combining != 0; });
    const auto end =
        std::find_if(at, text->end(), [](const Moving& c) { return c.combining == 0; });
    std::stable_sort(at, end,
                     [](const Moving& a, const Moving& b) { return a.combining < b.combining; });
    at = end;
  }
}

// The canonical composition: a character joins the last starter unless one of its own class or a
// higher one, or another starter, stands between the two.
void Compose(std::vector<Moving>* text) {
  size_t written = 0;
  size_t starter = 0;
  bool has_starter = false;
  for (const Moving c : *text) {
    if (has_starter) {
      const Moving& last = (*text)[written - 1];
      if (written - 1 == starter || (last.combining != 0 && last.combining < c.combining)) {
        const utf8proc_int32_t joined = Composed((*text)[starter].value, c.value);
        if (joined >= 0) {
          (*text)[starter].value = joined;
          (*text)[starter].change += c.change - 1;
          continue;
        }
      }
    }
    if (c.combining == 0) {
      starter = written;
      has_starter = true;
    }
    (*text)[written++] = c;
  }
  text->resize(written);
}

// Gives the characters their origins in the text as it was, in order: as `tokenizers` counts them,
// which knows changes only, a mark that was moved has the origin of the one that stood there.
void Write(const std::vector<Moving>& part, size_t begin, const std::string& before,
           AlignedText::Rewrite* rewrite) {
  size_t at = begin;
  std::string character;
  for (const Moving& c : part) {
    character.clear();
    AppendUtf8(static_cast<uint32_t>(c.value), &character);
    rewrite->Put(character, c.change > 0 && at > 0 ? at - 1 : std::min(at, before.size() - 1));
    for (int taken = c.change; taken <= 0 && at < before.size(); ++taken) {
      at += Utf8Length(before[at]);
    }
  }
}

}  // namespace

UnicodeNormalizer::UnicodeNormalizer(UnicodeForm form) : form_(form), settled_(kSettledEnd) {
  std::vector<Moving> parts;
  std::vector<bool> joins(kSettledEnd);  // may be composed with what is before it
  for (uint32_t c = 0; c < kSettledEnd; ++c) {
    parts.clear();
    Decompose(c, false, &parts);
    for (size_t i = 1; i < parts.size(); ++i) joins[static_cast<uint32_t>(parts[i].value)] = true;
  }
  for (uint32_t c = 0; c < kSettledEnd; ++c) {
    parts.clear();
    Decompose(c, form.compatibility, &parts);
    const bool begins =
        !parts.empty() && parts[0].combining == 0 && !joins[static_cast<uint32_t>(parts[0].value)];
    if (begins && form.compose) Compose(&parts);
    settled_[c] = begins && parts.size() == 1 && parts[0].value == static_cast<utf8proc_int32_t>(c);
  }
}

void UnicodeNormalizer::Apply(AlignedText* text) const {
  const std::string& bytes = text->text();
  // The first place from `at` on whose character is settled, or is not.
  const auto find = [&](size_t at, bool settled) {
    while (at < bytes.size()) {
      const CodePoint c = CodePointAt(bytes, at);
      if (IsSettled(c.value) == settled) break;
      at += c.length;
    }
    return at;
  };
  size_t open = find(0, false);
  if (open == bytes.size()) return;

  AlignedText::Rewrite rewrite(text);
  std::vector<Moving> part;
  size_t kept = 0;
  while (open < bytes.size()) {
    // 1. The character before the first one that is not settled begins the part.
    size_t begin = open;
    if (begin > kept) do
        --begin;
      while ((static_cast<unsigned char>(bytes[begin]) & 0xC0u) == 0x80u);
    rewrite.Keep({kept, begin});
    kept = find(open, true);
    // 2. The part.
    part.clear();
    for (size_t at = begin; at < kept;) {
      const CodePoint c = CodePointAt(bytes, at);
      Decompose(c.value, form_.compatibility, &part);
      at += c.length;
    }
    Reorder(&part);
    if (form_.compose) Compose(&part);
    Write(part, begin, bytes, &rewrite);
    open = find(kept, false);
  }
  rewrite.Keep({kept, bytes.size()});
  rewrite.Finish();
}

}  // namespace keel::model
