// The text between two turns, by templates that families write. That it is what transformers
// renders is multi_turn_oracle_test.py's to show.
#include "turns/turn_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/byte_tokenizer.h"

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
