#include "model/tokenizer/stream_decoder.h"

#include <utility>

#include "model/tokenizer/text/utf8.h"

namespace keel::model {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options), state_(tokenizer.StartDecoding(options)) {}

std::string StreamDecoder::Push(int32_t id) {
  state_->Push(id, &held_);
  return CompletePart();
}

std::string StreamDecoder::Finish() {
  state_->Finish(&held_);
  state_ = tokenizer_->StartDecoding(options_);
  return std::exchange(held_, {});
}

// A tokenizer of bytes gives its text byte by byte: the start of a character stays here until its
// end comes, or until it is certain that none does.
std::string StreamDecoder::CompletePart() {
  const size_t complete = held_.size() - UnfinishedTail(held_);
  std::string text = held_.substr(0, complete);
  held_.erase(0, complete);
  return text;
}

}  // namespace keel::model
