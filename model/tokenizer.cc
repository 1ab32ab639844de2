#include "model/tokenizer.h"

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

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerKind kind) {
  if (kind == TokenizerKind::kBytes) return std::make_unique<ByteTokenizer>();
  return nullptr;
}

}  // namespace keel::model
