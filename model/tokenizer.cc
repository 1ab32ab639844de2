#include "model/tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace keel::model {

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string Decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token >= 0 && token < 256) text += static_cast<char>(token);
    }
    return text;
  }
  int64_t vocab_size() const override { return 259; }
  std::optional<int32_t> bos() const override { return 256; }
  std::optional<int32_t> eos() const override { return 257; }
};

constexpr std::array kKindNames = {std::pair{TokenizerKind::kBytes, "bytes"},
                                   std::pair{TokenizerKind::kIds, "ids"}};

}  // namespace

std::vector<std::string> TokenizerKindNames() {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kKindNames) names.emplace_back(name);
  return names;
}

Result<TokenizerKind> ParseTokenizerKind(const std::string& name) {
  for (const auto& [kind, known] : kKindNames)
    if (name == known) return kind;
  return Status(StatusCode::kConfig, fmt::format("tokenizer: expected one of {}, found \"{}\"",
                                                 fmt::join(TokenizerKindNames(), ", "), name));
}

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name) {
  if (name == "bytes") return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  return Status(
      StatusCode::kConfig,
      fmt::format("tokenizer {}: only \"bytes\" is in this release; tokenize ahead and give "
                  "rows with input_ids for another",
                  name));
}

}  // namespace keel::model
