// Conversations of rows as tokens, by the run's chat template.
//
// The text is what transformers' apply_chat_template gives of the same messages, tools and
// arguments, and so are its tokens. What of it is learnt is told, in this order, by the template's
// {% generation %} blocks; by the texts of the conversation up to an answer, opened, and up to its
// end, which must both begin the whole text: what lies between them is the answer, without white
// space behind the token that ends it. Where they do not (a template that drops the thinking of
// earlier answers), data.train_on: last learns the last answer, which ends the text, unless the
// template opens an answer with what it does not write in one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/ready_ids.h"
#include "trainer/data/rows/row_text.h"

namespace keel::trainer {

// A row's messages, and what stands beside them for a template to read: tools (a list, or JSON in a
// string, as Parquet files have it), documents, chat_template_kwargs, enable_thinking.
struct Chat {
  Json messages;
  Json tools;
  Json documents;
  Json arguments = Json::object();
};

// The keys of a row, beside its messages, that go to the template: read by whoever reads messages.
std::vector<std::string_view> ChatKeys(const TextRules& rules);

// `messages` of `row`, which is where the other keys stand; `key` is for messages of errors.
// A content may be a list of parts, {"type": "text", "text": ...}, which the template gets as a
// list, as from transformers: one that expects a text raises, or prints the list, which is noted in
// `context.notes`.
// kInvalidData at the row: no tokenizer or template, no list of messages, a message without a role,
// parts that are no text; under ChatML, which shows role and content alone, anything else; under a
// template that has no word of it what RowNotes refuses beside messages, or counts where the row's
// model is only asked (RowContext::shows_what_it_can).
Result<Chat> ReadChat(const Json& messages, const Json& row, const RowContext& context,
                      const std::string& key);

// What comes behind a prompt whose last message is the assistant's: more of it, or a message of its
// own. Behind any other an answer is opened.
enum class Follows { kMoreOfIt, kAnother };

// What the model is asked.
Result<std::vector<int32_t>> ChatPrompt(const Chat& chat, const RowContext& context,
                                        Follows follows = Follows::kMoreOfIt);

// All of it, as text that nobody learns.
Result<TokenRow> ChatText(const Chat& chat, const RowContext& context);
// All of it, of which answers from message `first` on are learnt.
Result<TokenRow> ChatRow(const Chat& chat, size_t first, const RowContext& context);

// What follows the prompt, which is the first `prompt_size` messages with an answer opened.
Result<std::vector<int32_t>> ChatAnswer(const Chat& chat, size_t prompt_size,
                                        const RowContext& context);

// The text of a row that stands for a message: {"role": role, "content": text}.
Json ChatMessage(std::string_view role, std::string_view text);
// And the text of a message that ReadChat has taken: its content, or its content's parts, one
// behind the other, as ChatML writes them.
std::string SaidIn(const Json& message);

// Whether a prompt, question or answer of text belongs to a conversation: where the model's own
// template, not ChatML, says how one is written.
bool AsksInMessages(const TextRules& rules);

}  // namespace keel::trainer
