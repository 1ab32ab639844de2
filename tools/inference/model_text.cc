#include "tools/inference/model_text.h"

#include "trainer/data/rows/chat_rows.h"

namespace keel::tools {

Result<std::vector<int32_t>> ModelText::Encode(const std::string& text,
                                               const std::string& where) const {
  trainer::UnreadKeys unread;
  return trainer::EncodeText(text, {source_->text, where, unread});
}

Result<std::vector<int32_t>> ModelText::EncodeChat(const Json& messages, const Json& tools,
                                                   const std::string& where) const {
  trainer::UnreadKeys unread;
  return EncodeRow(messages, {{"tools", tools}}, {source_->text, where, unread});
}

Result<std::vector<int32_t>> ModelText::EncodeRow(const Json& messages, const Json& row,
                                                  const trainer::RowContext& context) const {
  const auto tools = row.find("tools");
  const bool none = tools == row.end() || tools->empty() || *tools == "";
  if (!none && tokenizer() != nullptr && !trainer::AsksInMessages(context.rules))
    return trainer::Malformed(context.where, "tools, which the model's ChatML has not");
  const trainer::RowContext shown{context.rules, context.where, context.unread, context.from_table,
                                  true};
  KEEL_ASSIGN_OR_RETURN(const trainer::Chat chat,
                        trainer::ReadChat(messages, row, shown, "messages"));
  return trainer::ChatPrompt(chat, shown);
}

}  // namespace keel::tools
