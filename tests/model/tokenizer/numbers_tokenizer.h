// NumbersTokenizer: a tokenizer that is no model's own. Every text is id 1; an id is "<id>", and a
// special one is named "|end|".
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace keel::model {

class NumbersTokenizer final : public Tokenizer {
 public:
  explicit NumbersTokenizer(int64_t vocab_size, std::optional<int32_t> special = {})
      : Tokenizer(FactsOf(vocab_size)), special_(special) {}
  std::optional<int32_t> IdOf(std::string_view text) const override {
    return text == "|end|" ? special_ : std::nullopt;
  }
  std::string_view TokenOf(int32_t) const override { return {}; }
  bool IsSpecial(int32_t id) const override { return id == special_; }
  std::unique_ptr<DecodeState> StartDecoding(const DecodeOptions&) const override {
    return std::make_unique<State>(special_);
  }

 private:
  class State final : public DecodeState {
   public:
    explicit State(std::optional<int32_t> special) : special_(special) {}
    void Push(int32_t id, std::string* text) override {
      if (id != special_) *text += fmt::format("<{}>", id);
    }
    void Finish(std::string*) override {}

   private:
    const std::optional<int32_t> special_;
  };
  static TokenizerFacts FactsOf(int64_t vocab_size) {
    TokenizerFacts facts;
    facts.vocab_size = vocab_size;
    return facts;
  }
  std::vector<int32_t> DoEncode(std::string_view, const EncodeOptions&,
                                std::vector<ByteRange>*) const override {
    return {1};
  }

  const std::optional<int32_t> special_;
};

}  // namespace keel::model
