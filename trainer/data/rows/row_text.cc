#include "trainer/data/rows/row_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/guarded.h"
#include "trainer/data/rows/ready_ids.h"

namespace keel::trainer {

namespace {

Result<std::vector<int32_t>> Encode(const std::string& text, bool framed, const RowContext& row) {
  if (row.rules.tokenizer == nullptr) {
    return Malformed(row.where,
                     fmt::format("a row of text, but {}; tokenize it ahead and give ids: input_ids "
                                 "(SFT: with labels), for DPO prompt_input_ids, chosen_input_ids "
                                 "and rejected_input_ids",
                                 row.rules.ids_only));
  }
  std::vector<int32_t> ids;
  const Status encoded = Guarded([&]() -> Status {
    model::EncodeOptions options;
    options.add_special_tokens = framed;
    ids = row.rules.tokenizer->Encode(text, options);
    return Status::Ok();
  });
  KEEL_RETURN_IF_ERROR(encoded.WithContext(row.where));
  return ids;
}

}  // namespace

Result<std::vector<int32_t>> EncodeText(const std::string& text, const RowContext& row) {
  return Encode(text, row.rules.frames_text, row);
}

Result<std::vector<int32_t>> EncodePrompt(const std::string& text, const RowContext& row) {
  KEEL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeText(text, row));
  if (EndsTexts(row.rules)) ids.pop_back();
  return ids;
}

Result<std::vector<int32_t>> EncodeMore(const std::string& text, const RowContext& row) {
  return Encode(text, false, row);
}

Result<std::vector<int32_t>> EncodeAnswer(const std::string& prompt,
                                          std::span<const int32_t> before,
                                          const std::string& answer, const RowContext& row) {
  KEEL_ASSIGN_OR_RETURN(std::vector<int32_t> both, EncodePrompt(prompt + answer, row));
  if (both.size() <= before.size() || !std::equal(before.begin(), before.end(), both.begin()))
    return EncodeMore(answer, row);
  both.erase(both.begin(), both.begin() + std::ssize(before));
  return both;
}

bool EndsTexts(const TextRules& rules) {
  if (!rules.frames_text || rules.tokenizer == nullptr) return false;
  // Of a text that does not end so by itself. One id may begin texts and end them.
  const std::vector<int32_t> framed = rules.tokenizer->Encode("a", {.add_special_tokens = true});
  const std::vector<int32_t> plain = rules.tokenizer->Encode("a", {.add_special_tokens = false});
  return framed.size() > plain.size() && framed.back() == rules.tokenizer->eos() &&
         std::equal(plain.rbegin(), plain.rend(), framed.rbegin() + 1);
}

void EndText(const TextRules& rules, std::vector<int32_t>* ids) {
  if (rules.tokenizer == nullptr) return;
  const auto eos = rules.tokenizer->eos();
  if (!eos) return;
  // Bytes are not framed; an end of text that ends them is one of the row's own.
  if (rules.frames_text && !ids->empty() && ids->back() == *eos) return;
  ids->push_back(*eos);
}

}  // namespace keel::trainer
