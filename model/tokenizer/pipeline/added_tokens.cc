#include "model/tokenizer/pipeline/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/text/unicode.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

CodePoint LastCodePoint(std::string_view text) {
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
  return CodePointAt(text, at);
}

size_t SpacesAtEnd(std::string_view text) {
  size_t kept = text.size();
  while (kept > 0) {
    const CodePoint c = LastCodePoint(text.substr(0, kept));
    if (!IsUnicodeSpace(c.value)) break;
    kept -= c.length;
  }
  return text.size() - kept;
}

size_t SpacesAtStart(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = CodePointAt(text, at);
    if (!IsUnicodeSpace(c.value)) break;
    at += c.length;
  }
  return at;
}

bool StandsAlone(std::string_view text, Span span) {
  const bool before =
      span.begin > 0 && IsUnicodeWord(LastCodePoint(text.substr(0, span.begin)).value);
  const bool after = span.end < text.size() && IsUnicodeWord(CodePointAt(text, span.end).value);
  return !before && !after;
}

}  // namespace

Status AddedTokenFinder::Add(const AddedToken& token, std::string_view content) {
  if (content.empty() || content.size() > kMaxBytes) {
    return {StatusCode::kInvalidData,
            fmt::format("the added token \"{}\" has {} bytes; 1 to {} are accepted",
                        Printable(token.content), content.size(), kMaxBytes)};
  }
  if (ends_.empty()) ends_.push_back(-1);
  begins_[static_cast<unsigned char>(content[0])] = true;
  uint32_t node = 0;
  for (const char byte : content) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
    const auto [found, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(-1);
    node = found->second;
  }
  if (ends_[node] >= 0) return Status::Ok();  // two that normalize to the same: the first counts
  ends_[node] = static_cast<int32_t>(flags_.size());
  flags_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
  return Status::Ok();
}

std::pair<int32_t, size_t> AddedTokenFinder::Longest(std::string_view text, size_t at) const {
  std::pair<int32_t, size_t> longest = {-1, at};
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] >= 0) longest = {ends_[node], i + 1};
  }
  return longest;
}

void AddedTokenFinder::Find(std::string_view text, std::vector<Cut>* cuts) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !flags_.empty();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto [index, end] = Longest(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const Flags& flags = flags_[static_cast<size_t>(index)];
    Span span{at, end};
    at = end;
    if (flags.single_word && !StandsAlone(text, span)) continue;
    if (flags.lstrip) {
      span.begin = std::max(span.begin - SpacesAtEnd(text.substr(0, span.begin)), done);
    }
    if (flags.rstrip) span.end += SpacesAtStart(text.substr(span.end));
    // White space that the token before has taken with it, to its end, is no token again.
    if (span.end <= span.begin) continue;
    if (done < span.begin) cuts->push_back({{done, span.begin}, -1});
    cuts->push_back({span, flags.id});
    done = span.end;
  }
  if (done < text.size()) cuts->push_back({{done, text.size()}, -1});
}

}  // namespace keel::model
