#include "model/tokenizer/byte_tokenizer.h"

#include <array>

namespace keel::model {

namespace {

constexpr int32_t kBegin = 256;
constexpr int32_t kEnd = 257;
constexpr int32_t kPad = 258;
constexpr std::array<std::string_view, 3> kSpecial = {"<|bos|>", "<|eos|>", "<|pad|>"};

TokenizerFacts FactsOfBytes() {
  TokenizerFacts facts;
  facts.vocab_size = 259;
  facts.bos = kBegin;
  facts.eos = kEnd;
  facts.pad = kPad;
  constexpr std::string_view kName = "keel bytes 259";
  facts.digest = Hash128(std::as_bytes(std::span(kName)));
  return facts;
}

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer(FactsOfBytes()) {
    for (size_t byte = 0; byte < bytes_.size(); ++byte) bytes_[byte] = static_cast<char>(byte);
  }
  std::optional<int32_t> IdOf(std::string_view text) const override {
    if (text.size() == 1) return static_cast<unsigned char>(text[0]);
    for (size_t i = 0; i < kSpecial.size(); ++i) {
      if (text == kSpecial[i]) return kBegin + static_cast<int32_t>(i);
    }
    return std::nullopt;
  }
  std::string_view TokenOf(int32_t id) const override {
    if (id < 0 || id > kPad) return {};
    if (IsSpecial(id)) return kSpecial[static_cast<size_t>(id - kBegin)];
    return {bytes_.data() + id, 1};
  }
  bool IsSpecial(int32_t id) const override { return id >= kBegin && id <= kPad; }
  std::unique_ptr<DecodeState> StartDecoding(const DecodeOptions& options) const override {
    return std::make_unique<State>(this, options);
  }

 private:
  class State final : public DecodeState {
   public:
    State(const ByteTokenizer* tokenizer, const DecodeOptions& options)
        : tokenizer_(tokenizer), options_(options) {}
    void Push(int32_t id, std::string* text) override {
      if (options_.skip_special_tokens && tokenizer_->IsSpecial(id)) return;
      *text += tokenizer_->TokenOf(id);
    }
    void Finish(std::string*) override {}

   private:
    const ByteTokenizer* tokenizer_;
    DecodeOptions options_;
  };

  // Special tokens that are written out in a text stay the bytes that they are.
  std::vector<int32_t> DoEncode(std::string_view text, const EncodeOptions& options,
                                std::vector<ByteRange>* offsets) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() + 2);
    const auto add = [&](int32_t id, int64_t begin, int64_t end) {
      ids.push_back(id);
      if (offsets != nullptr) offsets->push_back({begin, end});
    };
    if (options.add_special_tokens) add(kBegin, 0, 0);
    for (size_t i = 0; i < text.size(); ++i) {
      add(static_cast<unsigned char>(text[i]), static_cast<int64_t>(i),
          static_cast<int64_t>(i) + 1);
    }
    if (options.add_special_tokens) add(kEnd, 0, 0);
    return ids;
  }

  std::array<char, 256> bytes_{};
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace keel::model
