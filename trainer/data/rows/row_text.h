// Text of rows as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/row_notes.h"
#include "trainer/data/rows/text_rules.h"

namespace keel::trainer {

// A row that is being read: what its text becomes, where it stands, and who counts what is left.
struct RowContext {
  const TextRules& rules;
  const std::string& where;  // file and line
  RowNotes& notes;
  // Of a table, whose rows have all columns and all members: a null says that there is none.
  bool from_table = false;
  // What a conversation says and its template has no word of is counted, and the model asked
  // without it: a client of a server sends back whatever an answer came with. Refused where rows
  // are learnt from.
  bool shows_what_it_can = false;
  // The schemas that the row has where it brings none; nothing: ChatRules::tools.
  std::optional<Json> tools = {};
};

// Of each kInvalidData at the row where rows must bring ids, and for a text that the tokenizer
// cannot split.

// A text that is a whole sequence: a document.
Result<std::vector<int32_t>> EncodeText(const std::string& text, const RowContext& row);
// One that begins a sequence, as a prompt does: without the end that a tokenizer puts behind texts.
Result<std::vector<int32_t>> EncodePrompt(const std::string& text, const RowContext& row);
// A text that goes on, or that a chat template wrote.
Result<std::vector<int32_t>> EncodeMore(const std::string& text, const RowContext& row);
// An answer to a prompt of text, whose tokens are `before`: as a part of both, which a tokenizer
// that begins texts with a space tells from a text; by itself where a token would have some of
// either.
Result<std::vector<int32_t>> EncodeAnswer(const std::string& prompt,
                                          std::span<const int32_t> before,
                                          const std::string& answer, const RowContext& row);

// Whether the tokenizer's frame puts the end behind texts.
bool EndsTexts(const TextRules& rules);
// The id that ends a text, unless the ids end with it already: a tokenizer may have put it there.
void EndText(const TextRules& rules, std::vector<int32_t>* ids);

}  // namespace keel::trainer
