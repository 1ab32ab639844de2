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
using ::testing::Not;

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

// They were learnt encoded twice, and shown encoded once to the model that is served.
TEST_F(ChatNotesTest, ArgumentsThatATemplateEncodesTwiceAreCounted) {
  const auto rows_with = [&](const char* source, const Json& arguments) {
    Use(source);
    notes_ = RowNotes();
    Json talk = kTwoTurns;
    talk[1]["tool_calls"] =
        Json::array({{{"function", {{"name", "f"}, {"arguments", arguments}}}}});
    talk[3]["tool_calls"] = talk[1]["tool_calls"];
    for (int row = 0; row < 2; ++row) {
      notes_.CountRow();
      const Chat chat = ValueOrThrow(ReadChat(talk, Json::object(), Context(), "messages"));
      EXPECT_TRUE(ChatRow(chat, 0, Context()).ok());
      EXPECT_TRUE(ChatText(chat, Context()).ok());
      EXPECT_TRUE(ChatPrompt(chat, Context(), Follows::kAnother).ok());
    }
    notes_ = ValueOrThrow(RowNotes::FromJson(notes_.ToJson(), "notes"));
    return notes_.Warning("rows.jsonl");
  };
  const auto writing = [](const char* arguments) {
    return fmt::format(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}"
        "{{% for c in m.tool_calls %}}{{{{ {} }}}}{{% endfor %}}</>{{% endfor %}}"
        "{{% if add_generation_prompt %}}<assistant>{{% endif %}}",
        arguments);
  };
  for (const char* twice : {"c.function.arguments | tojson", "c.function | tojson", "c | tojson"}) {
    EXPECT_THAT(rows_with(writing(twice).c_str(), R"({"x": 1})"),
                HasSubstr("the arguments of calls in 2 of 2 rows are JSON in a string"))
        << twice;
    for (const Json& given : {Json{{"x", 1}}, Json("no JSON"), Json("[1]"), Json("{}")})
      EXPECT_THAT(rows_with(writing(twice).c_str(), given), Not(HasSubstr("arguments"))) << given;
  }
  // One writes a text as it stands, one nothing of it.
  for (const char* once : {"c.function.arguments", "c.function.name"})
    EXPECT_THAT(rows_with(writing(once).c_str(), R"({"x": 1})"), Not(HasSubstr("arguments")));
}

}  // namespace
}  // namespace keel::trainer
