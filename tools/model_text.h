// ModelText: texts and conversations as the tokens of a model, and back, for keel generate, score
// and chat.
//
// By the tokenizer and the chat template that stand beside the model; of a model that Keel trained
// on bytes, as its runs read them. Immutable. What the model lacks is an error when it is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/chat_template/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

class ModelText {
 public:
  // Of the model in `folder`, which is what `source` says; `source` must outlive this.
  static Result<ModelText> Open(const std::string& folder, const trainer::ModelSource& source);

  // Null when rows must bring their ids.
  const model::Tokenizer* tokenizer() const {
    return own_ != nullptr ? own_.get() : source_->tokenizer.get();
  }
  // A text as it stands, with what the model's tokenizer puts around one. `where` stands first in
  // messages.
  Result<std::vector<int32_t>> Encode(const std::string& text, const std::string& where) const;
  // A conversation whose next message is the model's. `tools`: schemas, or null.
  Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools,
                                          const std::string& where) const;

 private:
  ModelText(std::string folder, const trainer::ModelSource& source)
      : folder_(std::move(folder)), source_(&source) {}
  Status NoTokenizer(const std::string& where) const;

  std::string folder_;
  const trainer::ModelSource* source_;
  std::unique_ptr<model::Tokenizer> own_;  // null: Keel's bytes, or none
  std::optional<model::ChatTemplate> template_;
  // Why what is there cannot be used; rows that need none of it are read all the same.
  Status no_tokenizer_, no_template_;
};

}  // namespace keel::tools
