// ModelText: texts and conversations as the tokens of a model, for keel generate, score and chat:
// by the tokenizer and the chat template that its runs read rows by. What the model lacks is an
// error when it is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/row_text.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

class ModelText {
 public:
  // `source` must outlive this.
  explicit ModelText(const trainer::ModelSource& source) : source_(&source) {}

  // Null when rows must bring their ids.
  const model::Tokenizer* tokenizer() const { return source_->tokenizer.get(); }
  // A text as it stands, with what the model's tokenizer puts around one. `where` stands first in
  // messages.
  Result<std::vector<int32_t>> Encode(const std::string& text, const std::string& where) const;
  // A conversation whose next message, or the rest of the last one, is the model's. `tools`:
  // schemas, or null; nothing comes back where the template shows none of them. Parts of text are a
  // text to a template that reads no parts.
  Result<std::optional<std::vector<int32_t>>> EncodeChat(const Json& messages, const Json& tools,
                                                         const std::string& where) const;
  // The same of a row's messages, with what stands beside them for a template to read
  // (trainer/data/rows/chat_rows.h); what it does not show is counted in the context's notes.
  Result<std::vector<int32_t>> EncodeRow(const Json& messages, const Json& row,
                                         const trainer::RowContext& context) const;

 private:
  bool has_no_tools() const;  // nor a word of any: the model has ChatML

  const trainer::ModelSource* source_;
};

}  // namespace keel::tools
