// What is said of a conversation that a file's rows do not show: what a model is asked without.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const Json kTwoTurns =
    Json::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                                   {"role":"user","content":"c"},{"role":"assistant","content":"d"}])");

class ChatNotesTest : public ::testing::Test {
 protected:
  void Use(const char* source) {
    rules_ = TextRules(*bytes_);
    rules_.chat = std::make_shared<const ChatRules>(
        ChatRules{.chat = ValueOrThrow(model::ChatTemplate::Parse(source, "test"))});
  }
  RowContext Context() { return {rules_, where_, notes_}; }

  std::unique_ptr<model::Tokenizer> bytes_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
  TextRules rules_{*bytes_};
  const std::string where_ = "rows.jsonl:3";
  RowNotes notes_;
};

// `keel generate`, `score` and `serve` dropped them without a word.
TEST_F(ChatNotesTest, WhatAModelIsNotShownThatIsOnlyAskedIsCounted) {
  Use("{% for m in messages %}{{ m.content }}{% endfor %}");
  Json talk = kTwoTurns;
  talk[1]["reasoning_content"] = "r";
  talk[1]["score"] = 3;  // says nothing to a model
  const Json tools = Json::array({{{"function", {{"name", "f"}}}}});
  RowContext asked = Context();
  asked.shows_what_it_can = true;
  EXPECT_TRUE(ReadChat(talk, {{"tools", tools}}, asked, "messages").ok());
  EXPECT_THAT(notes_.Warning("rows.jsonl"),
              EndsWith("messages[].reasoning_content (1), tools (1)"));
  EXPECT_TRUE(notes_.Counts("tools"));
  // Nothing was said, or the template shows them, if only where an answer is opened.
  notes_ = RowNotes();
  EXPECT_TRUE(ReadChat(kTwoTurns, {{"tools", Json::array()}}, asked, "messages").ok());
  Use("{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt and tools %}{{ tools | tojson }}{% endif %}");
  Json question = kTwoTurns;
  question.erase(question.size() - 1);
  EXPECT_TRUE(ReadChat(question, {{"tools", tools}}, asked, "messages").ok());
  EXPECT_EQ(notes_.Warning("rows.jsonl"), "");
}

TEST_F(ChatNotesTest, KeysBesideATextThatSaySomethingToAModelAreCounted) {
  notes_.CountUnshown(Json::parse(R"({"prompt": "a", "system": "b", "history": [["c", "d"]],
                                      "tools": [], "weight": 0, "labels": [1], "id": 7})"),
                      {"prompt"});
  EXPECT_THAT(notes_.Warning("rows.jsonl"), EndsWith("history (1), system (1)"));
}

// Another trainer's names of the model were written into the text, and nothing said that none of it
// is learnt.
TEST_F(ChatNotesTest, RolesWhoseMessagesAreNotLearntAreNamed) {
  const Json talk = Json::parse(R"([
      {"role": "system", "content": "s"}, {"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "Assistant", "content": "x"},
      {"role": "model", "content": "c"}, {"role": "tool", "content": "d"},
      {"role": "ipython", "content": "e"}, {"role": "model", "content": "f"}])");
  const auto learn = [&] {
    const Chat chat = ValueOrThrow(ReadChat(talk, Json::object(), Context(), "messages"));
    return ValueOrThrow(ChatRow(chat, 0, Context()));
  };
  Use("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  learn();
  EXPECT_THAT(
      notes_.Warning("rows.jsonl"),
      HasSubstr("rows.jsonl: roles whose messages are not learnt: Assistant (1), model (2)"));
  const std::string once = notes_.Warning("");
  notes_ = ValueOrThrow(RowNotes::FromJson(notes_.ToJson(), "notes"));
  EXPECT_EQ(notes_.Warning(""), once);
  notes_.Add(RowNotes(notes_));
  EXPECT_THAT(notes_.Warning(""), HasSubstr("Assistant (2), model (4)"));
  // A template may mark them as learnt.
  notes_ = RowNotes();
  Use("{% for m in messages %}<{{ m.role }}>{% if m.role in ['model', 'assistant'] %}"
      "{% generation %}{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}");
  learn();
  EXPECT_THAT(notes_.Warning("rows.jsonl"), HasSubstr("not learnt: Assistant (1);"));
}

}  // namespace
}  // namespace keel::trainer
