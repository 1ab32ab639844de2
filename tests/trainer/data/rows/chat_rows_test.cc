// Conversations as tokens, by templates that families write, over bytes: what is learnt is the
// answer and its end. That it is what transformers masks is chat_training_test.py's to show.

#include "trainer/data/rows/chat_rows.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/tokenizer_kind.h"
#include "tests/support/char_tokenizer.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/data/rows/row_reader.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPlain =
    "{% if tools %}{{ tools | tojson }};{% endif %}{% for m in messages %}<{{ m.role }}>{{ "
    "m.content }}"
    "</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}</>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
// Shows what was thought in the last answer alone.
constexpr const char* kForgets =
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}(t){% endif "
    "%}"
    "{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

const Json kTalk = Json::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                                   {"role":"user","content":"c"},{"role":"assistant","content":"d"}])");

class ChatRowsTest : public ::testing::Test {
 protected:
  void Use(const char* source, TrainOn train_on = TrainOn::kAllAssistant, Json arguments = {}) {
    rules_ = TextRules(*bytes_);
    rules_.chat = std::make_shared<const ChatRules>(
        ChatRules{.chat = ValueOrThrow(model::ChatTemplate::Parse(source, "test")),
                  .arguments = arguments.is_null() ? Json::object() : arguments,
                  .train_on = train_on});
  }
  RowContext Context() { return {rules_, where_, notes_}; }
  Result<Chat> Read(const Json& messages, const Json& row = Json::object()) {
    return ReadChat(messages, row, Context(), "messages");
  }
  std::string Text(std::span<const int32_t> ids) const { return bytes_->Decode(ids); }
  // The learnt stretches, each in brackets of its own.
  std::string Learnt(const TokenRow& row) const {
    std::string text;
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const bool learnt = row.learn[i] != 0;
      if (learnt && (i == 0 || row.learn[i - 1] == 0)) text += '[';
      if (learnt) text += Text(std::span(&row.tokens[i], 1));
      if (learnt && (i + 1 == row.tokens.size() || row.learn[i + 1] == 0)) text += ']';
    }
    return text;
  }
  std::string LearntOf(const Json& messages, size_t first = 0) {
    const Chat chat = ValueOrThrow(Read(messages));
    return Learnt(ValueOrThrow(ChatRow(chat, first, Context())));
  }

  std::unique_ptr<model::Tokenizer> bytes_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
  TextRules rules_{*bytes_};
  const std::string where_ = "rows.jsonl:3";
  RowNotes notes_;
};

TEST_F(ChatRowsTest, AnswersAreToldByMarksAndByTheTextsUpToThem) {
  for (const char* source : {kPlain, kMarked}) {
    Use(source);
    EXPECT_EQ(LearntOf(kTalk), "[b</>][d</>]") << source;
    EXPECT_EQ(LearntOf(kTalk, 2), "[d</>]") << source;
    EXPECT_EQ(LearntOf(kTalk, 4), "") << source;
    Use(source, TrainOn::kLast);
    EXPECT_EQ(LearntOf(kTalk), "[d</>]") << source;
    // Not the last message, but the last answer.
    Json asked = kTalk;
    asked.push_back(ChatMessage("user", "e"));
    EXPECT_EQ(LearntOf(asked), "[d</>]") << source;
  }
  EXPECT_EQ(FingerprintOf(*rules_.chat).find("template "), 0u);
  rules_ = TextRules(*bytes_);
  EXPECT_EQ(LearntOf(kTalk), "[b<|im_end|>][d<|im_end|>]");
  EXPECT_EQ(FingerprintOf(*ChatMlRules()), "chatml");
}

// A cache that knew the one template alone gave rows with tools as the other one had written them.
TEST_F(ChatRowsTest, TheFingerprintKnowsTheTemplateForTools) {
  Use(kPlain);
  ChatRules rules = *rules_.chat;
  const std::string one = FingerprintOf(rules);
  rules.with_tools = ValueOrThrow(model::ChatTemplate::Parse(kMarked, "test"));
  const std::string two = FingerprintOf(rules);
  EXPECT_NE(one, two);
  rules.with_tools = ValueOrThrow(model::ChatTemplate::Parse(kForgets, "test"));
  EXPECT_NE(FingerprintOf(rules), two);
}

TEST_F(ChatRowsTest, WhatCannotBeToldIsRefusedWithTheWayOut) {
  Use(kForgets);
  const auto refused = ChatRow(ValueOrThrow(Read(kTalk)), 0, Context()).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidData);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("rows.jsonl:3"), HasSubstr("message 2"),
                                       HasSubstr("train_on to last"), HasSubstr("generation")));
  Use(kForgets, TrainOn::kLast);
  EXPECT_EQ(LearntOf(kTalk), "[(t)d</>]");
  // An answer that is opened otherwise than it is written.
  Use("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}",
      TrainOn::kLast);
  EXPECT_THAT(ChatRow(ValueOrThrow(Read(kTalk)), 0, Context()).status().message(),
              AllOf(HasSubstr("message 4"), ::testing::Not(HasSubstr("train_on"))));
  EXPECT_THAT(ChatAnswer(ValueOrThrow(Read(kTalk)), 3, Context()).status().message(),
              HasSubstr("does not begin as the prompt"));
}

// As DeepSeek-R1's distilled models': "set data.train_on to last" was the advice for a row whose
// only answer was the last one.
TEST_F(ChatRowsTest, TheLastAnswerIsNoWayOutWhereItCannotBeToldEither) {
  Use("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}");
  const auto opened = AllOf(HasSubstr("message 2 cannot be told"), HasSubstr("answer opened"),
                            HasSubstr("generation"), ::testing::Not(HasSubstr("train_on")));
  const Json once(kTalk.begin(), kTalk.begin() + 2);
  for (const Json& talk : {once, kTalk})
    EXPECT_THAT(ChatRow(ValueOrThrow(Read(talk)), 0, Context()).status().message(), opened);
}

// A block may begin with what an answer is opened with: it is learnt whole, whether or not another
// answer comes before it.
TEST_F(ChatRowsTest, ABlockIsLearntWholeWhateverPrecedesIt) {
  const char* const source =
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}(t)"
      "{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}</>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>(t){% endif %}";
  Use(source);
  EXPECT_EQ(LearntOf(kTalk), "[(t)b</>][(t)d</>]");
  EXPECT_EQ(LearntOf(kTalk, 2), "[(t)d</>]");
  Use(source, TrainOn::kLast);
  EXPECT_EQ(LearntOf(kTalk), "[(t)d</>]");
}

// Templates that write earlier answers otherwise once another follows: with less of them, or
// without what they begin with.
TEST_F(ChatRowsTest, BlocksOfTheLastAnswerAreThoseBehindTheEarlierOnes) {
  const auto source = [](const char* answer) {
    return fmt::format(
        "{{% for m in messages %}}{{% if m.role == 'assistant' %}}{}{{% else %}}<{{{{ m.content "
        "}}}}{{{{ messages | length }}}}>{{% endif %}}{{% endfor %}}",
        answer);
  };
  // What precedes it is another text when it stands alone; it has two blocks.
  const std::string two = source(
      "{% generation %}({{ m.content }}{% endgeneration %}|{% generation %}){% endgeneration %}");
  // It loses what it begins with.
  const std::string less = source(
      "{% generation %}{% if m == messages[-1] or messages[-1].role == 'user' %}(t){% endif %}{{ "
      "m.content }}{% endgeneration %}");
  // Only a text is in a block.
  const std::string none = source(
      "{% if m.content == 'd' %}d{% else %}{% generation %}{{ m.content }}{% endgeneration %}{% "
      "endif %}");
  // An earlier one may have lost a block, which would be one of the last's.
  const std::string fewer = source(
      "{% if m == messages[-1] or messages[-1].role == 'user' %}{% generation %}(t){% "
      "endgeneration %}{% endif %}|{% generation %}{{ m.content }}{% endgeneration %}");
  for (const TrainOn train_on : {TrainOn::kLast, TrainOn::kAllAssistant}) {
    const size_t first = train_on == TrainOn::kLast ? 0 : 2;
    Use(two.c_str(), train_on);
    EXPECT_EQ(LearntOf(kTalk, first), "[(d][)]");
    Use(less.c_str(), train_on);
    EXPECT_EQ(LearntOf(kTalk, first), "[(t)d]");
    for (const std::string& refused : {none, fewer}) {
      Use(refused.c_str(), train_on);
      EXPECT_THAT(ChatRow(ValueOrThrow(Read(kTalk)), first, Context()).status().message(),
                  AllOf(HasSubstr("blocks are the answer of message 4 cannot be told"),
                        ::testing::Not(HasSubstr("train_on"))));
    }
  }
}

// As pre-training does, which needs no mask.
TEST_F(ChatRowsTest, WhereAllIsLearntNobodyAsksWhatTheAnswersAre) {
  Use(kForgets);
  const ScratchFolder folder;
  const std::string path = folder.Write("rows.jsonl", Json{{"messages", kTalk}}.dump() + "\n");
  std::vector<std::string> learnt;
  const auto read = [&](bool all) {
    return ReadSomeRows(path, std::nullopt, {RowKeys(), rules_, all}, &notes_,
                        [&](TokenRow row, const std::string&) {
                          learnt.push_back(Learnt(row));
                          return Status::Ok();
                        });
  };
  EXPECT_EQ(read(true).ToString(), "ok");
  EXPECT_THAT(learnt,
              ::testing::ElementsAre("[<user>a</><assistant>b</><user>c</><assistant>(t)d</>]"));
  EXPECT_EQ(read(false).code(), StatusCode::kInvalidData);
}

// What such a template opens stood in what was learnt of the last answer.
TEST_F(ChatRowsTest, AnotherAnswerThatATemplateAlwaysOpensIsNotLearnt) {
  const Json talk(kTalk.begin(), kTalk.begin() + 2);
  for (const char* source :
       {"{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "<assistant>",
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}assistant:"}) {
    Use(source, TrainOn::kLast);
    EXPECT_THAT(ChatRow(ValueOrThrow(Read(talk)), 0, Context()).status().message(),
                AllOf(HasSubstr("rows.jsonl:3"), HasSubstr("opens another answer")))
        << source;
    EXPECT_THAT(ChatAnswer(ValueOrThrow(Read(talk)), 1, Context()).status().message(),
                HasSubstr("opens another answer"))
        << source;
  }
  // One that never opens any, and ends every message alike, or the last one otherwise.
  Use("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}", TrainOn::kLast);
  EXPECT_EQ(LearntOf(talk), "[<assistant>b</>]");
  Use("{% for m in messages %}{{ m.content }}{% if loop.last %}!{% else %}</>{% endif %}{% endfor "
      "%}");
  EXPECT_THAT(ChatRow(ValueOrThrow(Read(talk)), 0, Context()).status().message(),
              HasSubstr("otherwise when they stand alone"));
}

constexpr const char* kEnded =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<e>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

// GPT-NeoX's and others' files leave spaces out of their offsets: they are the answer's all the
// same.
TEST_F(ChatRowsTest, SpacesOfAnAnswerAreLearntWhateverOffsetsSay) {
  std::vector<std::string> characters = {"Ġ", "Ċ"};
  for (char c = '!'; c <= '~'; ++c) characters.emplace_back(1, c);
  Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  const auto trims = testing::MakeCharTokenizer(characters, bytes, bytes);
  const Json talk = Json::parse(
      R"([{"role":"user","content":"a  b"},{"role":"assistant","content":" if:\n    x  =  1 "}])");
  Use(kEnded);
  rules_.tokenizer = trims.get();
  const TokenRow row = ValueOrThrow(ChatRow(ValueOrThrow(Read(talk)), 0, Context()));
  const auto begin = row.learn.size() - std::string(" if:\n    x  =  1 ").size() - 1;
  for (size_t i = 0; i < row.learn.size(); ++i) EXPECT_EQ(row.learn[i], i >= begin) << i;
}

// A tokenizer that begins texts with a space of its own begins no answer so.
TEST_F(ChatRowsTest, AnAnswerIsAPartOfItsConversation) {
  const auto first = testing::MakeMetaspaceTokenizer();
  const Json talk =
      Json::parse(R"([{"role":"user","content":"q r"},{"role":"assistant","content":"Hi you"}])");
  for (const std::string& source :
       {std::string(kEnded),
        std::string("{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}"
                    "{% generation %}{{ m.content }}<e>{% endgeneration %}{% else %}"
                    "{{ m.content }}<e>{% endif %}{% endfor %}"
                    "{% if add_generation_prompt %}a:{% endif %}")}) {
    Use(source.c_str());
    rules_.tokenizer = first.get();
    const Chat chat = ValueOrThrow(Read(talk));
    const TokenRow row = ValueOrThrow(ChatRow(chat, 0, Context()));
    std::vector<int32_t> learnt;
    for (size_t i = 0; i < row.tokens.size(); ++i)
      if (row.learn[i] != 0) learnt.push_back(row.tokens[i]);
    EXPECT_EQ(learnt.size(), 7u);  // "Hi▁you<e>"
    EXPECT_EQ(first->TokenOf(learnt[0]), "H");
    EXPECT_EQ(ValueOrThrow(ChatAnswer(chat, 1, Context())), learnt) << source;
  }
}

TEST_F(ChatRowsTest, AConversationThatTheAssistantBeginsMayNeedAMark) {
  Use("{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const Json talk = Json::parse(
      R"([{"role":"assistant","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"}])");
  EXPECT_THAT(ChatRow(ValueOrThrow(Read(talk)), 0, Context()).status().message(),
              AllOf(HasSubstr("rows.jsonl:3: "), HasSubstr("the first message is the assistant's"),
                    HasSubstr("generation")));
  Use(kPlain);
  EXPECT_EQ(LearntOf(talk), "[a</>][c</>]");
}

// A special token of the prompt that takes the white space which an answer begins with.
TEST_F(ChatRowsTest, ATokenOfThePromptIsNotLearnt) {
  const auto tokenizer =
      keel::testing::MakeCharTokenizer({"a", "b", " "}, nullptr, nullptr, /*strips=*/true);
  Use("{% for m in messages %}{{ m.content }}<e>{% endfor %}");
  rules_.tokenizer = tokenizer.get();
  const auto row = [&](const char* answer) {
    const Json talk = {ChatMessage("user", "a"), ChatMessage("assistant", answer)};
    return ValueOrThrow(ChatRow(ValueOrThrow(Read(talk)), 0, Context()));
  };
  for (const char* answer : {"b", " b"}) {
    EXPECT_EQ(row(answer).tokens, (std::vector<int32_t>{1, 0, 2, 0})) << answer;
    EXPECT_EQ(row(answer).learn, (std::vector<uint8_t>{0, 0, 1, 1})) << answer;
  }
}

// vLLM's template_chatml.jinja ends what is followed by another message, and nothing else.
TEST_F(ChatRowsTest, AnEndThatOnlyAnotherMessageBringsIsLearntAndAMissingOneSaid) {
  const auto learns = [&](const char* source, bool ends) {
    const auto tokenizer = keel::testing::MakeCharTokenizer({"a", "b", "c", "d", ":", "u"}, nullptr,
                                                            nullptr, /*strips=*/false, ends);
    Use(source);
    rules_.tokenizer = tokenizer.get();
    rules_.tokenizer_name = "characters";
    notes_ = {};
    notes_.CountRow();
    const TokenRow row = ValueOrThrow(ChatRow(ValueOrThrow(Read(kTalk)), 0, Context()));
    std::string learnt;
    for (size_t i = 0; i < row.tokens.size(); ++i)
      if (row.learn[i] != 0) learnt += tokenizer->TokenOf(row.tokens[i]);
    return learnt;
  };
  const char* const source =
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
      "{% if not loop.last or add_generation_prompt %}<e>{% endif %}{% endfor %}"
      "{% if add_generation_prompt and messages[-1].role == 'user' %}a:{% endif %}";
  EXPECT_EQ(learns(source, /*ends=*/true), "b<e>d");
  EXPECT_THAT(notes_.Warning("r"), HasSubstr("no special token behind an answer of 1 of 1 rows"));
  // Another token than what ends a text may begin the next message.
  EXPECT_EQ(learns(source, /*ends=*/false), "bd");
  EXPECT_EQ(learns(kEnded, /*ends=*/true), "b<e>d<e>");
  EXPECT_EQ(notes_.Warning("r"), "");
  RowNotes both = ValueOrThrow(RowNotes::FromJson(notes_.ToJson(), "n"));
  EXPECT_EQ(both.Warning("r"), "");
  EXPECT_EQ(learns(source, /*ends=*/true), "b<e>d");
  both.Add(ValueOrThrow(RowNotes::FromJson(notes_.ToJson(), "n")));
  EXPECT_THAT(both.Warning("r"), HasSubstr("1 of 2 rows"));
}

TEST_F(ChatRowsTest, PromptsAreOpenedOrGoneOnWith) {
  Use(kPlain);
  const Json asked(kTalk.begin(), kTalk.begin() + 3);
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(asked)), Context()))),
            "<user>a</><assistant>b</><user>c</><assistant>");
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(kTalk)), Context()))),
            "<user>a</><assistant>b</><user>c</><assistant>d");
  EXPECT_EQ(Text(ValueOrThrow(ChatAnswer(ValueOrThrow(Read(kTalk)), 3, Context()))), "d</>");
  const Chat tools = ValueOrThrow(Read(asked, {{"tools", "[{\"b\": 1, \"a\": 2}]"}}));
  EXPECT_THAT(Text(ValueOrThrow(ChatPrompt(tools, Context()))),
              ::testing::StartsWith("[{\"b\": 1, \"a\": 2}];"));
}

TEST_F(ChatRowsTest, ARowsArgumentsGoBeforeTheRuns) {
  Use("{{ x }}{{ y }}{{ enable_thinking }}", TrainOn::kAllAssistant,
      {{"x", 1}, {"y", 2}, {"enable_thinking", false}});
  const Json asked(kTalk.begin(), kTalk.begin() + 3);
  const Json row = {{"chat_template_kwargs", {{"y", 3}}}, {"enable_thinking", true}};
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(asked, row)), Context()))), "13True");
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(asked)), Context()))), "12False");
}

TEST_F(ChatRowsTest, NullsOfTablesSayNothing) {
  Use("{% for m in messages %}{{ 'none' if m.tool_calls is none else 'absent' if m.tool_calls is "
      "not "
      "defined else m.tool_calls[0] }};{% endfor %}");
  const Json messages = Json::parse(
      R"([{"role":"user","content":"a","tool_calls":null},
          {"role":"user","content":"a","tool_calls":[{"f":1,"g":null}]}])");
  const auto text = [&](bool table) {
    const RowContext context{rules_, where_, notes_, table};
    const Chat chat = ValueOrThrow(ReadChat(messages, Json::object(), context, "messages"));
    return Text(ValueOrThrow(ChatPrompt(chat, context)));
  };
  EXPECT_EQ(text(false), "absent;{'f': 1, 'g': None};");
  EXPECT_EQ(text(true), "absent;{'f': 1};");
}

// As transformers has it since 5: most templates wrote "None", which was learnt.
TEST_F(ChatRowsTest, AContentThatIsNullIsNone) {
  for (const char* source : {kPlain, kMarked}) {
    Use(source);
    EXPECT_EQ(LearntOf(Json::parse(R"([{"role":"user","content":"a"},
                                       {"role":"assistant","content":null}])")),
              "[</>]");
  }
}

// A schema has the nulls that its writer gave it, where it is a text that he wrote.
TEST_F(ChatRowsTest, NullsOfATextStay) {
  Use("{{ tools[0] if tools else 'no tools' }}");
  const Json asked = Json::array({ChatMessage("user", "a")});
  const auto text = [&](const Json& tools, bool table) {
    const RowContext context{rules_, where_, notes_, table};
    const Chat chat = ValueOrThrow(ReadChat(asked, {{"tools", tools}}, context, "messages"));
    return Text(ValueOrThrow(ChatPrompt(chat, context)));
  };
  const Json tools = Json::parse(R"([{"name":"f","default":null}])");
  EXPECT_EQ(text(tools, false), "{'name': 'f', 'default': None}");
  EXPECT_EQ(text(tools, true), "{'name': 'f'}");
  for (const bool table : {false, true}) {
    EXPECT_EQ(text(tools.dump(), table), "{'name': 'f', 'default': None}");
    EXPECT_EQ(text("null", table), "no tools");
  }
}

// Each content of `messages` as the parts of its text, cut in two.
Json InParts(Json messages) {
  for (Json& message : messages) {
    const auto text = message["content"].get<std::string>();
    message["content"] = Json::array({{{"type", "text"}, {"text", text.substr(0, 1)}},
                                      {{"type", "text"}, {"text", text.substr(1)}}});
  }
  return messages;
}

const Json kLongTalk = Json::parse(
    R"([{"role":"user","content":"ask"},{"role":"assistant","content":"answer"},
        {"role":"user","content":"more"},{"role":"assistant","content":"end"}])");

TEST_F(ChatRowsTest, PartsOfTextAreReadByTemplatesThatReadThem) {
  const std::string text = "{% for p in m.content %}{{ p.text }}{% endfor %}</>";
  const std::string opened = "{% if add_generation_prompt %}<assistant>{% endif %}";
  for (const std::string& answer : {text, "{% generation %}" + text + "{% endgeneration %}"}) {
    const std::string source =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}" + answer +
        "{% else %}" + text + "{% endif %}{% endfor %}" + opened;
    Use(source.c_str());
    EXPECT_EQ(LearntOf(InParts(kLongTalk)), "[answer</>][end</>]") << source;
    EXPECT_EQ(LearntOf(InParts(kLongTalk), 2), "[end</>]") << source;
    const Chat chat = ValueOrThrow(Read(InParts(kLongTalk)));
    EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(chat, Context()))),
              "<user>ask</><assistant>answer</><user>more</><assistant>end");
    EXPECT_EQ(Text(ValueOrThrow(ChatAnswer(chat, 3, Context()))), "end</>");
  }
  EXPECT_EQ(notes_.Warning("rows.jsonl"), "");
}

TEST_F(ChatRowsTest, ChatMlWritesPartsAsTheirText) {
  const auto tokens = [&](const Json& messages) {
    const Chat chat = ValueOrThrow(Read(messages));
    return std::pair(ValueOrThrow(ChatRow(chat, 0, Context())).tokens, LearntOf(messages));
  };
  EXPECT_EQ(tokens(InParts(kLongTalk)), tokens(kLongTalk));
  Json mixed = kLongTalk;
  mixed[1] = InParts(kLongTalk)[1];
  EXPECT_EQ(tokens(mixed), tokens(kLongTalk));
  EXPECT_EQ(SaidIn(mixed[1]), "answer");
  EXPECT_EQ(SaidIn(mixed[3]), "end");
}

TEST_F(ChatRowsTest, ATemplateThatExpectsTextPrintsPartsAndThatIsSaid) {
  Use(kPlain);
  const Json asked = Json::array({InParts(kLongTalk)[0]});
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(asked)), Context()))),
            "<user>[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'sk'}]</><assistant>");
  RowNotes again = ValueOrThrow(RowNotes::FromJson(notes_.ToJson(), "test"));
  for (const RowNotes& keys : {notes_, again}) {
    EXPECT_THAT(keys.Warning("rows.jsonl"),
                AllOf(HasSubstr("rows.jsonl: the chat template"), HasSubstr("as Python prints")));
  }
  again.Count("id");
  EXPECT_THAT(again.Warning("x"), AllOf(HasSubstr("id (1); the chat template")));
  // Of texts, too.
  notes_ = RowNotes();
  const Json texts = Json::array({{{"role", "user"}, {"content", {"ask", "it"}}}});
  EXPECT_EQ(Text(ValueOrThrow(ChatPrompt(ValueOrThrow(Read(texts)), Context()))),
            "<user>['ask', 'it']</><assistant>");
  EXPECT_TRUE(notes_.parts_shown());
  // One that adds them to text raises, as under transformers.
  Use("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}");
  EXPECT_EQ(ChatPrompt(ValueOrThrow(Read(asked)), Context()).status().code(),
            StatusCode::kInvalidData);
}

// weight: 0 was learnt, and a call that the template did not write became an empty answer.
TEST_F(ChatRowsTest, WhatTheTemplateHasNoWordOfIsRefused) {
  Use(kMarked);
  const auto refusal = [&](const char* key, const Json& value, const Json& row = Json::object()) {
    Json talk = kTalk;
    if (*key != '\0') talk[1][key] = value;
    const auto chat = Read(talk, row);
    return chat.ok() ? "" : std::string(chat.status().message());
  };
  const Json calls = Json::array({{{"function", {{"name", "f"}}}}});
  EXPECT_THAT(refusal("tool_calls", calls),
              AllOf(HasSubstr("rows.jsonl:3"), HasSubstr("messages[].tool_calls changes"),
                    HasSubstr("data.chat_template")));
  EXPECT_THAT(refusal("reasoning_content", "r"), HasSubstr("messages[].reasoning_content"));
  for (const char* name : {"reasoning", "thinking"}) {
    Use(kMarked);
    EXPECT_THAT(refusal(name, "r"), HasSubstr(std::string("messages[].") + name));
    // A template is shown it under each of its names, whether or not this message's is written.
    for (const char* read : {"reasoning_content", "thinking", name}) {
      Use(fmt::format("{{% for m in messages %}}{{{{ m.content }}}}{{% if loop.last %}}{{{{ m.{} "
                      "}}}}{{% endif %}}{{% endfor %}}",
                      read)
              .c_str());
      EXPECT_EQ(refusal(name, "r"), "") << name << ", " << read;
    }
  }
  // The words as an argument, and in what it says, read no message.
  Use("{% if not thinking is defined %}{% set thinking = false %}{% endif %}reasoning effort"
      "{% for m in messages %}{{ m.content }}{% endfor %}");
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    EXPECT_THAT(refusal(name, "r"), HasSubstr(std::string("messages[].") + name));
  Use("{% for m in messages %}{{ m.content }}{{ m.reasoning }}{% endfor %}");
  EXPECT_THAT(refusal("reasoning_content", "r"), HasSubstr("messages[].reasoning_content"));
  Use(kMarked);
  EXPECT_THAT(refusal("weight", 0), HasSubstr("messages[].weight"));
  EXPECT_THAT(refusal("train", false), HasSubstr("-100 in labels"));
  EXPECT_THAT(refusal("loss", false), HasSubstr("messages[].loss changes"));
  EXPECT_THAT(refusal("trainable", false), HasSubstr("messages[].trainable changes"));
  EXPECT_THAT(refusal("training", 0), HasSubstr("messages[].training changes"));
  EXPECT_THAT(refusal("masked", true), HasSubstr("messages[].masked changes"));
  EXPECT_THAT(refusal("train_on_turn", false), HasSubstr("messages[].train_on_turn changes"));
  EXPECT_THAT(refusal("loss_weight", 0.0), HasSubstr("messages[].loss_weight changes"));
  EXPECT_EQ(refusal("masked", false), "");
  EXPECT_THAT(refusal("", {}, {{"tools", calls}}), HasSubstr("tools changes"));
  // The word alone does not show them, as where messages have tools of their own.
  Use("{% for m in messages %}{% if m.tools %}{{ m.tools }}{% endif %}<{{ m.content }}>"
      "{% endfor %}");
  EXPECT_THAT(refusal("", {}, {{"tools", calls}}), HasSubstr("tools changes"));
  // A longer word that holds it is another one.
  Use("{% if enable_thinking %}I was trained by us.{% endif %}{% for m in messages %}<{{ m.role }}>"
      "{{ m.content }}</>{% endfor %}");
  EXPECT_THAT(refusal("train", false), HasSubstr("messages[].train changes"));
  EXPECT_THAT(refusal("thinking", "r"), HasSubstr("messages[].thinking changes"));
  Use("{% for m in messages %}<{{ m['thinking'] }}{{ m.content }}</>{% endfor %}");
  EXPECT_EQ(refusal("thinking", "r"), "");
  Use(kMarked);
  // What says nothing, or is the template's to show or to drop.
  EXPECT_EQ(refusal("reasoning_content", ""), "");
  EXPECT_EQ(refusal("weight", 1), "");
  EXPECT_EQ(refusal("train", true), "");
  EXPECT_EQ(refusal("loss", 1), "");
  EXPECT_EQ(refusal("", {}, {{"loss", 0.25}, {"training", false}}), "");
  EXPECT_EQ(refusal("tool_calls", Json::array()), "");
  EXPECT_EQ(refusal("tool_call_id", "c1"), "");
  EXPECT_EQ(refusal("name", "n"), "");
  Use(kPlain);
  EXPECT_EQ(refusal("", {}, {{"tools", calls}}), "");
  Use("{% for m in messages %}{{ m.role }}{% if m.tool_calls and loop.last %}!{% endif %}"
      "{% endfor %}");
  EXPECT_EQ(refusal("tool_calls", calls), "");
  Use("{% for m in messages %}{{ m | tojson }}{% endfor %}");
  EXPECT_EQ(refusal("reasoning_content", "r"), "");
}

TEST_F(ChatRowsTest, OtherMembersThatNoTextHasAreCounted) {
  Json talk = kTalk;
  talk[1]["score"] = 3;
  talk[3]["score"] = 4;
  Use("{% for m in messages %}{{ m | tojson }}{% endfor %}");
  ASSERT_TRUE(Read(talk).ok());
  EXPECT_EQ(notes_.Warning("rows.jsonl"), "");
  Use(kPlain);
  ASSERT_TRUE(Read(talk).ok());
  EXPECT_THAT(notes_.Warning("rows.jsonl"), HasSubstr("messages[].score (2)"));
}

TEST_F(ChatRowsTest, MessagesThatAreNoneAreRefused) {
  Use(kPlain);
  const auto refusal = [&](const char* messages) {
    const auto chat = Read(Json::parse(messages));
    EXPECT_EQ(chat.status().code(), StatusCode::kInvalidData) << messages;
    EXPECT_THAT(chat.status().message(), HasSubstr("rows.jsonl:3"));
    return chat.status().message();
  };
  EXPECT_THAT(refusal("[]"), HasSubstr("list of messages"));
  EXPECT_THAT(refusal("\"text\""), HasSubstr("list of messages"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("role"));
  EXPECT_THAT(refusal(R"([{"content":"a"}])"), HasSubstr("role"));
  EXPECT_THAT(refusal(R"([{"role":"user","content":5}])"), HasSubstr("content"));
  const char* const parts[][2] = {
      {R"([{"type":"image"}])", "of type image,"},
      {R"([{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}])",
       "of type image_url,"},
      {R"([{"type":"input_audio","input_audio":{}}])", "of type input_audio,"},
      {R"([{"type":"text"}])", "text"},
      {R"([{"text":"a"}])", "type"},
      {R"([7])", "type"}};
  for (const auto& [content, word] : parts) {
    const std::string row = fmt::format(R"([{{"role":"user","content":{}}}])", content);
    Use(kPlain);
    EXPECT_THAT(refusal(row.c_str()), HasSubstr(word));
    rules_ = TextRules(*bytes_);
    EXPECT_THAT(refusal(row.c_str()), HasSubstr(word)) << "under ChatML";
  }
  EXPECT_THAT(refusal(R"([{"role":"user","content":["a"]}])"), HasSubstr("a part that is no"));
  rules_.no_chat = "the model has none";
  EXPECT_THAT(refusal(R"([{"role":"user","content":"a"}])"), HasSubstr("the model has none"));
}

}  // namespace
}  // namespace keel::trainer
