// Rows that bring their token ids, with the mask, labels and positions that tokenizers and
// collators write beside them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

// A tokenized row. learn[i] says whether the token is to be predicted in SFT (answers);
// pre-training learns all.
struct TokenRow {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learn;
};

// kInvalidData for a row at `where`, the file and line.
Status Malformed(const std::string& where, const std::string& text);

// Keys of the lists of a row; an empty one is not looked for.
struct IdKeys {
  std::string ids = "input_ids";
  std::string mask = "attention_mask";
  std::string labels = "labels";
  std::string positions = "position_ids";

  // The keys that there are.
  std::vector<std::string_view> All() const;
};

// The ids of a row. Tokens whose attention_mask is 0, which is padding at either end, are dropped
// with their labels. labels, -100 where nothing is learnt, say what is; without them all is.
// kInvalidData at `where`: ids that are none, lists of other lengths, a mask that is not 0 and 1,
// has a hole or hides all, labels that are not the token, positions that do not count the kept
// tokens from 0.
Result<TokenRow> ReadIds(const Json& row, const IdKeys& keys, const std::string& where);

// Says whether the value is a list of numbers, which are then ids, rather than of messages.
bool IsIdList(const Json& value);

// kInvalidData when a token is none of the model's.
Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where);

}  // namespace keel::trainer
