#include "tools/inference/model_text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trainer/data/rows/chat_rows.h"

namespace keel::tools {

namespace {

bool IsTextPart(const Json& part) {
  return part.is_object() && part.value("type", Json()) == "text" &&
         part.value("text", Json()).is_string();
}

// The messages with a text in the place of each list of parts; nothing where there is none, or one
// of other things than text.
std::optional<Json> WithTexts(const Json& messages) {
  Json texts = messages;
  bool any = false;
  for (Json& message : texts) {
    if (!message.is_object()) return std::nullopt;
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    if (!std::all_of(content->begin(), content->end(), IsTextPart)) return std::nullopt;
    any = true;
    *content = trainer::SaidIn(message);
  }
  return any ? std::optional(std::move(texts)) : std::nullopt;
}

}  // namespace

Result<std::vector<int32_t>> ModelText::Encode(const std::string& text,
                                               const std::string& where) const {
  trainer::RowNotes notes;
  return trainer::EncodeText(text, {source_->text, where, notes});
}

bool ModelText::has_no_tools() const {
  return tokenizer() != nullptr && !trainer::AsksInMessages(source_->text);
}

Result<std::optional<std::vector<int32_t>>> ModelText::EncodeChat(const Json& messages,
                                                                  const Json& tools,
                                                                  const std::string& where) const {
  using Ids = std::optional<std::vector<int32_t>>;
  if (!tools.empty() && has_no_tools()) return Ids();
  trainer::RowNotes notes;
  const trainer::RowContext context{source_->text, where, notes};
  auto ids = EncodeRow(messages, {{"tools", tools}}, context);
  // Who asks means the texts of his parts. A template that knows texts alone has refused the list,
  // or written it down as Python prints it.
  if (!ids.ok() || notes.parts_shown()) {
    if (const auto texts = WithTexts(messages))
      ids = EncodeRow(*texts, {{"tools", tools}}, context);
  }
  if (!ids.ok()) return ids.status();
  return notes.Counts("tools") ? Ids() : Ids(*std::move(ids));
}

Result<std::vector<int32_t>> ModelText::EncodeRow(const Json& messages, const Json& row,
                                                  const trainer::RowContext& context) const {
  const auto tools = row.find("tools");
  const bool none = tools == row.end() || tools->empty() || *tools == "";
  if (!none && has_no_tools())
    return trainer::Malformed(context.where, "tools, which the model's ChatML has not");
  const trainer::RowContext shown{context.rules, context.where, context.notes, context.from_table,
                                  true};
  KEEL_ASSIGN_OR_RETURN(const trainer::Chat chat,
                        trainer::ReadChat(messages, row, shown, "messages"));
  return trainer::ChatPrompt(chat, shown);
}

}  // namespace keel::tools
