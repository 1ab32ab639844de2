// FurtherTokens: the tokens that stand beside a tokenizer's file: in added_tokens.json, where
// transformers kept them before tokenizer_config.json had added_tokens_decoder, in that, and those
// that the settings name for a task.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/pipeline/added_tokens.h"
#include "model/tokenizer/pipeline/vocabulary.h"

namespace keel::model {

struct FurtherTokens {
  std::string where;                 // the file of `tokens`
  std::vector<AddedToken> tokens;    // of added_tokens.json, by id
  std::vector<AddedToken> declared;  // of added_tokens_decoder, by id
  std::vector<AddedToken> named;     // that the settings give a task; they say no ids
  std::vector<AddedToken> extra;     // that they list beside these
  bool has_decoder = false;          // added_tokens_decoder is there, if only as an empty map
  // Where two files of settings do not name the same ones: their names, and what each names.
  std::string two_files;
  std::vector<std::string> of_first;
  std::vector<std::string> of_second;
  std::vector<std::string> disputed;  // that one of them alone names where both say something
};

// A token of the settings: its text, or an object with the text and flags. A text alone is special.
// Nothing for anything else.
Result<std::optional<AddedToken>> ReadNamedToken(const Json& json, std::string_view where);

// Of a file's {"<x>": 32000, ...}. Those among `special` are left out when ids are decoded, and are
// looked for in the text as it was given; the others in the normalized one. In the order of ids.
Result<std::vector<AddedToken>> ReadAddedTokensFile(const Json& file,
                                                    const std::vector<std::string>& special,
                                                    std::string_view where);

// Adds those that have an id and that the tokenizer's own file, `where`, does not have among its
// added tokens, as transformers does, which gives each the vocabulary's id, or else the next one,
// and to those that are there the flags of `declared`. kInvalidData where added_tokens.json has
// another id: transformers would leave that unsaid.
Status AddFurther(const FurtherTokens& further, const Vocabulary& vocabulary,
                  std::string_view where, std::vector<AddedToken>* added);

// Adds those of `named` and `extra` that are not there, and makes those of `named` that are
// special, as transformers does, which with added_tokens_decoder leaves alone what that does not
// list. kInvalidData where each of two files names some that `where`, the
// tokenizer's own file, lacks, or where they say different things of one: which of these
// are added, and in which order, differs between versions of transformers, and so do their ids.
Status AddNamed(const FurtherTokens& further, const Vocabulary& vocabulary, std::string_view where,
                std::vector<AddedToken>* added);

}  // namespace keel::model
