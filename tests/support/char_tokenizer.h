// A tokenizer.json whose tokens are single characters, and "<e>", which ends a turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/json.h"
#include "model/tokenizer/files/tokenizer_json.h"

namespace keel::testing {

// `characters`: one id each, behind that of "<e>", which is 0, and takes white space behind it
// where it `strips`. `ends`: the configuration names it as the end of a text. The other two as in
// the file.
inline std::unique_ptr<model::Tokenizer> MakeCharTokenizer(
    const std::vector<std::string>& characters, const Json& pre_tokenizer,
    const Json& post_processor = nullptr, bool strips = false, bool ends = false) {
  Json vocab = {{"<e>", 0}};
  for (const std::string& one : characters) vocab[one] = vocab.size();
  const Json end = {{"id", 0},         {"content", "<e>"}, {"single_word", false},
                    {"lstrip", false}, {"rstrip", strips}, {"normalized", false},
                    {"special", true}};
  const Json file = {{"version", "1.0"},
                     {"added_tokens", {end}},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer},
                     {"post_processor", post_processor},
                     {"decoder", nullptr},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  model::SpecialNames names;
  if (ends) names.eos = "<e>";
  return ValueOrThrow(model::ParseTokenizerJson(file.dump(), "test", names));
}

// As Llama's newer files: a space is "▁", and so is the beginning of a text, but not of what stands
// behind a special token.
inline std::unique_ptr<model::Tokenizer> MakeMetaspaceTokenizer() {
  std::vector<std::string> characters = {"▁", "\n"};
  for (char c = '!'; c <= '~'; ++c) characters.emplace_back(1, c);
  return MakeCharTokenizer(
      characters,
      {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}});
}

}  // namespace keel::testing
