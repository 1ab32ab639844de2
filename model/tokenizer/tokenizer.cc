#include "model/tokenizer/tokenizer.h"

#include <algorithm>

#include "common/parallel_for.h"

namespace keel::model {

// What begins a text may lose its space: the second of two is in the midst.
std::string Tokenizer::BytesOf(int32_t id) const {
  const int32_t two[] = {id, id};
  const DecodeOptions all{.skip_special_tokens = false};
  return Decode(two, all).substr(Decode(std::span(two, 1), all).size());
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  const auto state = StartDecoding(options);
  std::string text;
  for (const int32_t id : ids) state->Push(id, &text);
  state->Finish(&text);
  return text;
}

std::string Tokenizer::LeadOf(std::span<const int32_t> before, std::span<const int32_t> ids) const {
  const auto is_shown = [&](int32_t id) { return !IsSpecial(id) && !TokenOf(id).empty(); };
  const auto first = std::find_if(ids.begin(), ids.end(), is_shown);
  if (first == ids.end() || std::none_of(before.rbegin(), before.rend(), is_shown)) return {};
  std::string within = BytesOf(*first);
  const std::string alone = Decode(std::span(&*first, 1));
  if (!within.ends_with(alone)) return {};
  within.resize(within.size() - alone.size());
  return within;
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
