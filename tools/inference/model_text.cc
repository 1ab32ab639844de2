#include "tools/inference/model_text.h"

#include "trainer/data/chat_rows.h"

namespace keel::tools {

Result<std::vector<int32_t>> ModelText::Encode(const std::string& text,
                                               const std::string& where) const {
  trainer::UnreadKeys unread;
  return trainer::EncodeText(text, {source_->text, where, unread});
}

Result<std::vector<int32_t>> ModelText::EncodeChat(const Json& messages, const Json& tools,
                                                   const std::string& where) const {
  if (!tools.is_null() && tokenizer() != nullptr && !trainer::AsksInMessages(source_->text))
    return trainer::Malformed(where, "tools, which the model's ChatML has not");
  trainer::UnreadKeys unread;
  const trainer::RowContext context{source_->text, where, unread, false, true};
  KEEL_ASSIGN_OR_RETURN(const trainer::Chat chat,
                        trainer::ReadChat(messages, {{"tools", tools}}, context, "messages"));
  return trainer::ChatPrompt(chat, context);
}

}  // namespace keel::tools
