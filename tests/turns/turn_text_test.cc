// The text between two turns, by templates that families write. That it is what transformers
// renders is tests/oracles/multi_turn_oracle_test.py's to show.
#include "turns/turn_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/byte_tokenizer.h"
#include "tests/support/char_tokenizer.h"

namespace keel::turns {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|eos|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class TurnTextTest : public ::testing::Test {
 protected:
  Result<TurnText> Make(const char* source) {
    TurnTextOptions options{ValueOrThrow(model::ChatTemplate::Parse(source, "test"))};
    options.tools = Json::array({Json{{"type", "function"}}});
    options.stop_ids = {*bytes_->eos()};
    return TurnText::Make(std::move(options), *bytes_);
  }
  static ToolCall Call(const std::string& name, const std::string& id = "") {
    ToolCall call;
    call.name = name;
    call.id = id;
    return call;
  }
  const std::unique_ptr<model::Tokenizer> bytes_ = model::MakeByteTokenizer();
};

// "<|eos|>" was generated; the line's end behind it is the template's, and was not.
TEST_F(TurnTextTest, WhatTheTemplateWritesBehindATurnIsGiven) {
  const TurnText text = ValueOrThrow(Make(kChatMl));
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f")}, {"4"})),
            "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f"), Call("g")}, {"4", "<|eos|>"})),
            "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n<|eos|>\n"
            "</tool_response><|im_end|>\n<|im_start|>assistant\n");
  const std::string said = ValueOrThrow(text.Text({Call("f")}, {"4"}));
  EXPECT_EQ(bytes_->Decode(ValueOrThrow(text.Tokens({Call("f")}, {"4"}))), said);
}

// Behind the token that ends a turn a tokenizer writes no beginning of a text.
TEST(TurnTextTokens, AreThoseOfTheConversation) {
  const auto first = testing::MakeMetaspaceTokenizer();
  TurnTextOptions options{ValueOrThrow(model::ChatTemplate::Parse(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<e>\n{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}",
      "test"))};
  options.tools = Json::array({Json{{"type", "function"}}});
  options.shows_users = true;
  options.stop_ids = {0};
  const TurnText text = ValueOrThrow(TurnText::Make(std::move(options), *first));
  ToolCall tool, user;
  tool.name = "f";
  user.to_environment = true;
  for (const auto& [call, begins] : {std::pair(tool, "t"), std::pair(user, "u")}) {
    const std::vector<int32_t> tokens = ValueOrThrow(text.Tokens({call}, {"4 5"}));
    std::string said;
    for (const int32_t token : tokens) said += first->TokenOf(token);
    EXPECT_EQ(said, fmt::format("\n{}:4▁5<e>\na:", begins));
  }
}

// As Gemma 4's and gpt-oss's, which find a result's name by its call, and one that shows one call.
TEST_F(TurnTextTest, ATemplateFindsTheCallsThatWereMade) {
  constexpr const char* kByCall =
      "{% for m in messages %}{% if m.tool_calls %}{% set calls = m.tool_calls %}<C>"
      "{% for r in messages[loop.index0 + 1:] %}{% for c in calls %}{% if c.id == r.tool_call_id %}"
      "<{{ c.function.name }}>{{ r.content }}"
      "{% endif %}{% endfor %}{% endfor %}{% elif m.role == 'user' %}{{ m.content }}<|eos|>"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(ValueOrThrow(
                ValueOrThrow(Make(kByCall)).Text({Call("now", "a"), Call("sum", "b")}, {"4", "5"})),
            "<now>4<sum>5");
  constexpr const char* kOne =
      "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
      "{{ raise_exception('one call') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kOne)).Text({Call("f"), Call("g")}, {"4", "5"})),
            "[tool]4[tool]5");
}

// As Qwen3's: an empty thought stands in a turn that nothing follows, and not in one that tools do.
TEST_F(TurnTextTest, ATemplateMayWriteTheLastTurnOtherwise) {
  constexpr const char* kThought =
      "{% for m in messages %}{% if m.role == 'tool' %}[R]{{ m.content }}[/R]"
      "{% else %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last %}<think></think>"
      "{% endif %}{{ m.content }}{% for c in m.tool_calls %}<C>{{ c.function.name }}</C>"
      "{% endfor %}<|eos|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]"
      "{% if enable_thinking is defined %}<think></think>{% endif %}{% endif %}";
  const TurnText text = ValueOrThrow(Make(kThought));
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f")}, {"4"})), "\n[R]4[/R][assistant]");
  // Whatever the tools say.
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f"), Call("g")}, {"<|eos|>", "0"})),
            "\n[R]<|eos|>[/R][R]0[/R][assistant]");
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f")}, {"1"})), "\n[R]1[/R][assistant]");
  EXPECT_EQ(ValueOrThrow(text.Text({Call("f")}, {""})), "\n[R][/R][assistant]");
  // A turn that has no end there cannot be told from what follows it.
  const Status status =
      Make(
          "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}<last>{% endif %}"
          "{{ m.content }}{% endfor %}")
          .status();
  EXPECT_THAT(status.message(), HasSubstr("does not begin as the one without"));
}

// As Apriel's: what ends a turn is the model's, also where it stands only before what follows.
TEST_F(TurnTextTest, TheEndOfATurnIsNotGivenAgain) {
  constexpr const char* kBetween =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
      "{% if m.role == 'assistant' and not loop.last %}\n<|eos|>\n{% endif %}{% endfor %}";
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kBetween)).Text({Call("f")}, {"4"})), "\n[tool]4");
  constexpr const char* kBefore =
      "{% for m in messages %}{% if m.role == 'assistant' %}<|eos|>[A]{{ m.content }}"
      "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|eos|>[A]{% endif %}";
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kBefore)).Text({Call("f")}, {"4"})),
            "[tool]4<|eos|>[A]");
}

// What a model wrote as an argument is not shown again: a template might refuse it, or it might
// hold the token that ends a turn.
TEST_F(TurnTextTest, TheModelsArgumentsAreNotRendered) {
  constexpr const char* kPicky =
      "{% for m in messages %}{% for c in m.tool_calls %}"
      "{% if c.function.arguments %}{{ raise_exception('no') }}{% endif %}<C>{% endfor %}"
      "{{ m.content }}{% endfor %}";
  ToolCall call = Call("f");
  call.arguments["x"] = "<|eos|>";
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kPicky)).Text({call}, {"4"})), "4");
}

TEST_F(TurnTextTest, ATemplateThatWantsTheCallGetsOne) {
  constexpr const char* kWants =
      "{% for m in messages %}{% if m.role == 'tool' %}"
      "{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}"
      "[R]{{ m.tool_call_id }}:{{ m.content }}[/R]{% elif m.tool_calls %}[C]</s>"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kWants)).Text({Call("f", "abc")}, {"4"})),
            "[R]abc:4[/R]");
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(Make(kWants)).Text({Call("f")}, {"4"})),
            "[R]call00000:4[/R]");
}

class UserTextTest : public TurnTextTest {
 protected:
  Result<TurnText> MakeForUsers(const char* source) {
    TurnTextOptions options{ValueOrThrow(model::ChatTemplate::Parse(source, "test"))};
    options.shows_tools = false;
    options.shows_users = true;
    options.stop_ids = {*bytes_->eos()};
    return TurnText::Make(std::move(options), *bytes_);
  }
  static std::string Said(const TurnText& text, const std::string& by_user) {
    ToolCall told;
    told.to_environment = true;
    told.name = "guess";
    return ValueOrThrow(text.Text({told}, {by_user}));
  }
};

TEST_F(UserTextTest, WhatAnEnvironmentSaysIsAUsersTurn) {
  const TurnText text = ValueOrThrow(MakeForUsers(kChatMl));
  EXPECT_EQ(Said(text, "higher"), "\n<|im_start|>user\nhigher<|eos|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Said(text, "<|eos|>"), "\n<|im_start|>user\n<|eos|><|eos|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Said(text, ""), "\n<|im_start|>user\n<|eos|>\n<|im_start|>assistant\n");
}

// As Qwen3's: the last answer has its thinking, those before another question have not.
TEST_F(UserTextTest, ATemplateMayWriteTheLastAnswerOtherwise) {
  const TurnText text = ValueOrThrow(MakeForUsers(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"
      "<think></think>{% endif %}{{ m.content | trim }}<|eos|>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}"));
  EXPECT_EQ(Said(text, " higher "), "<user>higher<|eos|><assistant>");
}

TEST_F(UserTextTest, ATurnWithoutAnEndOfItsOwnIsFollowedAtOnce) {
  const TurnText text = ValueOrThrow(
      MakeForUsers("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"));
  EXPECT_EQ(Said(text, "a<|eos|>b"), "[user]a<|eos|>b");
}

TEST_F(UserTextTest, TemplatesThatShowNoSecondQuestionAreRefused) {
  for (const char* source :
       {"{{ messages[0].content }}{{ messages[1].content }}", "{{ messages[-1].content }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if messages | length > 2 %}"
        "{{ raise_exception('one question') }}{% endif %}"}) {
    const Status status = MakeForUsers(source).status();
    EXPECT_EQ(status.code(), StatusCode::kConfig) << source;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("multi_turn"), HasSubstr("data.chat_template")));
  }
}

TEST_F(TurnTextTest, TemplatesThatShowNoToolAreRefused) {
  for (const char* source :
       {"{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ messages | length }}{{ messages[-1].content }}",
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{% endfor %}"}) {
    const Status status = Make(source).status();
    EXPECT_EQ(status.code(), StatusCode::kConfig) << source;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("multi_turn"), HasSubstr("data.chat_template")));
  }
}

TEST(TruncatedTest, CharactersAreCountedAndNeverCut) {
  const std::string text = "aäbcÖd";
  EXPECT_EQ(Truncated(text, 6, TruncateSide::kMiddle), std::nullopt);
  EXPECT_EQ(Truncated(text, 2, TruncateSide::kLeft), "aä...(truncated)");
  EXPECT_EQ(Truncated(text, 2, TruncateSide::kRight), "(truncated)...Öd");
  EXPECT_EQ(Truncated(text, 5, TruncateSide::kMiddle), "aä...(truncated)...Öd");
  EXPECT_EQ(Truncated(text, 1, TruncateSide::kMiddle), "...(truncated)...");
  EXPECT_EQ(Truncated("\x80\x80", 0, TruncateSide::kLeft), std::nullopt);
}

}  // namespace
}  // namespace keel::turns
