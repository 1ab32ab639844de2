#include "model/tokenizer/tokenizer.h"

#include "common/parallel_for.h"

namespace keel::model {

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  const auto state = StartDecoding(options);
  std::string text;
  for (const int32_t id : ids) state->Push(id, &text);
  state->Finish(&text);
  return text;
}

std::vector<std::vector<int32_t>> EncodeBatch(const Tokenizer& tokenizer,
                                              std::span<const std::string_view> texts, int threads,
                                              const EncodeOptions& options) {
  std::vector<std::vector<int32_t>> ids(texts.size());
  ThrowIfError(ParallelFor(static_cast<int64_t>(texts.size()), threads, [&](int64_t i, int) {
    const auto index = static_cast<size_t>(i);
    ids[index] = tokenizer.Encode(texts[index], options);
    return Status::Ok();
  }));
  return ids;
}

}  // namespace keel::model
