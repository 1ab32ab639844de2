// StreamDecoder: ids as they are sampled, to text as it becomes certain. What all calls return, one
// after the other, is Tokenizer::Decode of all ids: no character is ever shown half or taken back.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizer/tokenizer.h"

namespace keel::model {

// Not thread-safe; must not outlive the tokenizer.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // The text that this id makes certain: whole characters, often "" while one is unfinished.
  std::string Push(int32_t id);
  // What is left, unfinished as it may be; a new text may begin after it.
  std::string Finish();

 private:
  std::string CompletePart();

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::unique_ptr<Tokenizer::DecodeState> state_;
  std::string held_;
};

}  // namespace keel::model
