// The vocabulary of a GGUF file as the files of a Hugging Face tokenizer.
#pragma once

#include <string>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_file.h"

namespace keel::model {

struct GgufTokenizer {
  Json tokenizer;             // of tokenizer.json
  Json config;                // of tokenizer_config.json, with the templates
  std::string chat_template;  // of chat_template.jinja; "": there is none, or several
};

// Of the kinds `gpt2` (byte-level BPE, whose splitting is named by tokenizer.ggml.pre) and `llama`
// (SentencePiece BPE, whose merges are those that its scores order). kInvalidData names the key
// that is missing, wrong, or not understood.
Result<GgufTokenizer> ReadGgufTokenizer(const GgufMetadata& metadata);

}  // namespace keel::model
