// NumbersTokenizer: a tokenizer that is no model's own. Every text is id 1; an id is "<id>".
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace keel::model {

class NumbersTokenizer final : public Tokenizer {
 public:
  explicit NumbersTokenizer(int64_t vocab_size) : Tokenizer(FactsOf(vocab_size)) {}
  std::optional<int32_t> IdOf(std::string_view) const override { return std::nullopt; }
  std::string_view TokenOf(int32_t) const override { return {}; }
  bool IsSpecial(int32_t) const override { return false; }
  std::unique_ptr<DecodeState> StartDecoding(const DecodeOptions&) const override {
    return std::make_unique<State>();
  }

 private:
  class State final : public DecodeState {
   public:
    void Push(int32_t id, std::string* text) override { *text += fmt::format("<{}>", id); }
    void Finish(std::string*) override {}
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
};

}  // namespace keel::model
