#include "model/tokenizer/files/tiktoken_file.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "common/text.h"
#include "model/tokenizer/files/rank_vocabulary.h"
#include "model/tokenizer/files/token_list.h"

namespace keel::model {

namespace {

// Of Qwen's first generation (tokenization_qwen.py).
constexpr const char* kQwenClass = "QWenTokenizer";
constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int kQwenExtras = 205;

Result<std::vector<std::string>> ReadLines(std::string_view text, std::string_view where) {
  constexpr size_t kMostTokens = size_t{1} << 22;
  std::vector<std::string> bytes;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) end = text.size();
    std::string_view line = Trim(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    const std::string at = fmt::format("{}: token {}", where, bytes.size());
    const size_t space = line.find(' ');
    int64_t rank = -1;
    if (space != std::string_view::npos) {
      const char* last = line.data() + line.size();
      const auto [stopped, error] = std::from_chars(line.data() + space + 1, last, rank);
      if (error != std::errc() || stopped != last) rank = -1;
    }
    // Ranks are ids: a file that leaves some out is none that anybody writes.
    if (rank != std::ssize(bytes) || bytes.size() >= kMostTokens) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: expected base64, a space and the rank {}, found \"{}\"", at,
                                bytes.size(), Printable(line, 60)));
    }
    KEEL_ASSIGN_OR_RETURN(std::string token, DecodeBase64(line.substr(0, space), at));
    bytes.push_back(std::move(token));
  }
  return bytes;
}

}  // namespace

Result<TokenizerDocument> ReadTiktoken(std::string_view text, const Json& settings,
                                       std::string_view where) {
  const auto found = settings.find("tokenizer_class");
  const std::string name =
      found != settings.end() && found->is_string() ? found->get<std::string>() : "";
  if (name != kQwenClass) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: the file has neither the pattern that splits texts nor the special "
                    "tokens, and tokenizer_config.json names {}, of which Keel knows neither; it "
                    "knows {}; give the model's tokenizer.json",
                    where, name.empty() ? "no tokenizer_class" : Printable(name, 60), kQwenClass));
  }
  KEEL_ASSIGN_OR_RETURN(const auto bytes, ReadLines(text, where));
  KEEL_ASSIGN_OR_RETURN(RankVocabulary ranks, MakeRankVocabulary(bytes, where));
  TokenList list;
  list.tokens = std::move(ranks.tokens);
  list.merges = std::move(ranks.merges);
  list.kinds.assign(list.tokens.size(), TokenKind::kNormal);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
    list.tokens.emplace_back(special);
  for (int i = 0; i < kQwenExtras; ++i) list.tokens.push_back(fmt::format("<|extra_{}|>", i));
  list.kinds.resize(list.tokens.size(), TokenKind::kControl);
  ByteLevelSplit split = SplitBy(kQwenPattern);
  split.normalizer = {{"type", "NFC"}};
  TokenizerDocument out;
  out.json = ByteLevelTokenizer(list, {}, split);
  out.names.eos = "<|endoftext|>";
  return out;
}

}  // namespace keel::model
