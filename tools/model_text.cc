#include "tools/model_text.h"

#include <fmt/format.h>

#include <utility>

#include "common/guarded.h"
#include "model/tokenizer/open_tokenizer.h"
#include "trainer/data/row_reader.h"
#include "trainer/inputs/tokenizer_fit.h"

namespace keel::tools {

namespace {

// What throws on a text that the tokenizer refuses, as a Result.
Result<std::vector<int32_t>> Ids(const model::Tokenizer& tokenizer, const std::string& text,
                                 bool add_special_tokens, const std::string& where) {
  std::vector<int32_t> ids;
  const Status encoded = Guarded([&]() -> Status {
    model::EncodeOptions options;
    options.add_special_tokens = add_special_tokens;
    ids = tokenizer.Encode(text, options);
    return Status::Ok();
  });
  KEEL_RETURN_IF_ERROR(encoded.WithContext(where));
  return ids;
}

}  // namespace

Result<ModelText> ModelText::Open(const std::string& folder, const trainer::ModelSource& source) {
  ModelText text(folder, source);
  if (source.json.contains(trainer::kTokenizerMark)) return text;  // bytes
  auto tokenizer = model::OpenTokenizer(folder);
  if (!tokenizer.ok()) {
    if (tokenizer.status().code() != StatusCode::kNotFound) text.no_tokenizer_ = tokenizer.status();
    return text;
  }
  if ((*tokenizer)->vocab_size() > source.config.vocab_size) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: the tokenizer has {} ids, and config.json's vocab_size is {}: "
                              "they are not of one model",
                              folder, (*tokenizer)->vocab_size(), source.config.vocab_size));
  }
  text.own_ = *std::move(tokenizer);
  auto chat = model::LoadChatTemplate(folder);
  text.no_template_ = chat.status();
  if (chat.ok()) text.template_ = *std::move(chat);
  return text;
}

Status ModelText::NoTokenizer(const std::string& where) const {
  if (!no_tokenizer_.ok()) return no_tokenizer_.WithContext(where + ": a text");
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: a text, but {} has no tokenizer: give the model's tokenizer.json "
                            "beside its config.json, or rows of input_ids",
                            where, folder_));
}

Result<std::vector<int32_t>> ModelText::Encode(const std::string& text,
                                               const std::string& where) const {
  if (own_ != nullptr) return Ids(*own_, text, true, where);
  if (tokenizer() == nullptr) return NoTokenizer(where);
  trainer::UnreadKeys unread;
  return trainer::EncodeText(text, {source_->text, where, unread});
}

Result<std::vector<int32_t>> ModelText::EncodeChat(const Json& messages, const Json& tools,
                                                   const std::string& where) const {
  if (tokenizer() == nullptr) return NoTokenizer(where);
  if (!messages.is_array() || messages.empty())
    return trainer::Malformed(where, "expected a list of messages, with one or more");
  if (own_ == nullptr) {
    if (!tools.is_null())
      return trainer::Malformed(where, "tools, which the model's ChatML has not");
    trainer::UnreadKeys unread;
    KEEL_ASSIGN_OR_RETURN(
        trainer::TokenRow row,
        trainer::RenderChat(messages, {source_->text, where, unread}, "messages", true));
    return std::move(row.tokens);
  }
  KEEL_RETURN_IF_ERROR(no_template_.WithContext(where + ": messages"));
  if (!template_) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: messages, but {} has no chat template: give the model's "
                              "chat_template.jinja beside its config.json, or rows of text",
                              where, folder_));
  }
  model::ChatRequest request;
  request.messages = messages;
  request.tools = tools;
  request.add_generation_prompt = true;
  const auto rendered = template_->Render(request);
  KEEL_RETURN_IF_ERROR(rendered.status().WithContext(where));
  // The template writes what begins a text itself.
  return Ids(*own_, rendered->text, false, where);
}

}  // namespace keel::tools
