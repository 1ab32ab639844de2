#include "tools/inference/answer_stream.h"

#include <algorithm>

#include "common/text.h"

namespace keel::tools {

namespace {

// What stands for bytes that are no character; tokenizers decode the beginning of one as it.
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Without the end that is no whole character yet.
std::string_view WholeCharacters(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  // The first byte of the last character is at most three before the end.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    if (FindNotUtf8(text.substr(at)) != std::string_view::npos) text = text.substr(0, at);
    break;
  }
  return text;
}

// How many bytes at the end of `text` begin `word`, without being all of it.
size_t BegunAtEnd(std::string_view text, std::string_view word) {
  for (size_t size = std::min(text.size(), word.size() - 1); size > 0; --size) {
    if (text.ends_with(word.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

std::string AnswerStream::Grow(std::string_view text) {
  std::string_view sure = WholeCharacters(text);
  size_t held = 0;
  for (const std::string& word : stop_) {
    if (!word.empty()) held = std::max(held, BegunAtEnd(sure, word));
  }
  sure.remove_suffix(held);
  if (sure.size() <= shown_) return {};
  const std::string_view added = sure.substr(shown_);
  shown_ = sure.size();
  return std::string(added);
}

std::string AnswerStream::End(std::string_view text) {
  if (text.size() <= shown_) return {};
  const std::string_view added = text.substr(shown_);
  shown_ = text.size();
  return std::string(added);
}

}  // namespace keel::tools
