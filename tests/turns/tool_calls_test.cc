// What a model writes, and what of it is a call: by the book, broken, and hostile.
#include "turns/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "model/tokenizer/byte_tokenizer.h"

namespace keel::turns {
namespace {

using ::testing::HasSubstr;

std::string Show(const std::vector<ToolCall>& calls) {
  std::string text;
  for (const ToolCall& call : calls)
    text += call.problem.empty() ? call.name + call.arguments.dump() + call.id + ";" : "?;";
  return text;
}
std::string Hermes(std::string_view text) {
  return Show(ParseToolCalls(ToolFormat::kHermes, text));
}
std::string Llama(std::string_view text) {
  return Show(ParseToolCalls(ToolFormat::kLlama3Json, text));
}
std::string Mistral(std::string_view text) {
  return Show(ParseToolCalls(ToolFormat::kMistral, text));
}

TEST(ToolCallsTest, HermesCallsStandInMarks) {
  EXPECT_EQ(Hermes("The answer is 4."), "");
  EXPECT_EQ(Hermes("Let me see.\n<tool_call>\n{\"name\": \"calc\", \"arguments\": {\"x\": 1}}\n"
                   "</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>"),
            "calc{\"x\":1};now{};");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>"),
            "f{\"a\":2};");
  for (const char* broken :
       {"<tool_call>{\"name\": \"f\"", "<tool_call></tool_call>", "<tool_call>{}</tool_call>",
        "<tool_call>[1]</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 12345678901234567890123}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}"})
    EXPECT_EQ(Hermes(broken), "?;") << broken;
  EXPECT_THAT(ParseToolCalls(ToolFormat::kHermes, "<tool_call>{\"name\": 1").front().problem,
              HasSubstr("</tool_call>"));
}

TEST(ToolCallsTest, LlamaCallsAreTheWholeTurn) {
  EXPECT_EQ(Llama("It is 4."), "");
  EXPECT_EQ(Llama("{\"answer\": 4}"), "");
  EXPECT_EQ(Llama("{\"name\": \"calc\", \"parameters\": {\"x\": \"}\"}}"), "calc{\"x\":\"}\"};");
  EXPECT_EQ(Llama("<|python_tag|>{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\"}"),
            "a{};b{};");
  EXPECT_EQ(Llama("<|python_tag|>print(4)"), "?;");
  EXPECT_EQ(Llama("{ \"name\": \"calc\", \"parameters\": {"), "?;");
}

// One call on a line, or with a comma or nothing between them, is a call as well.
TEST(ToolCallsTest, LlamaCallsThatStandOneBehindTheOther) {
  const std::string a = R"({"name": "a", "parameters": {"x": 1}})", b = R"({"name": "b"})";
  for (const char* between : {";", "; ", "\n", ", ", ""})
    EXPECT_EQ(Llama(a + between + b), "a{\"x\":1};b{};") << between;
  EXPECT_EQ(Llama(a + "; that is all"), "a{\"x\":1};?;");
  // What is none of these is the model's text.
  for (const char* behind : {" and so on", "\n{\"result\": 4}", ",", ";"})
    EXPECT_EQ(Llama(a + behind), "a{\"x\":1};") << behind;
}

// As small Llamas write many of theirs.
TEST(ToolCallsTest, LlamaCallsMaySayThatTheyAreFunctions) {
  EXPECT_EQ(Llama(R"({"type": "function", "name": "f", "parameters": {"x": 1}})"), "f{\"x\":1};");
  EXPECT_EQ(Llama(R"({"type": "text", "name": "f"})"), "");
  EXPECT_EQ(Llama(R"({"type": "function", "x": "f"})"), "");
}

// A call under the other format's word for them was made without any.
TEST(ToolCallsTest, ArgumentsAreNotLostUnderAnotherName) {
  EXPECT_EQ(Hermes(R"(<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>)"),
            "f{\"x\":1};");
  EXPECT_EQ(Llama(R"({"name": "f", "arguments": {"x": 1}})"), "f{\"x\":1};");
  EXPECT_EQ(Llama(R"({"name": "f", "arguments": {"x": 1}, "parameters": {"x": 2}})"),
            "f{\"x\":2};");
  EXPECT_EQ(Mistral(R"([TOOL_CALLS][{"name": "f", "parameters": {"x": 1}}])"), "f{\"x\":1};");
  for (const char* lost : {R"("args": {"x": 1})", R"("x": 1)", R"("argument": "{}")"}) {
    const auto calls = ParseToolCalls(
        ToolFormat::kHermes, "<tool_call>{\"name\": \"f\", " + std::string(lost) + "}</tool_call>");
    ASSERT_EQ(calls.size(), 1U);
    EXPECT_THAT(calls[0].problem, HasSubstr("arguments")) << lost;
  }
  EXPECT_EQ(Hermes(R"(<tool_call>{"id": "a", "type": "function", "name": "f"}</tool_call>)"),
            "f{}a;");
}

Json SchemasOfCalc() {
  return Json::parse(R"([{"type": "function", "function": {"name": "calc", "parameters": {
      "type": "object", "properties": {"x": {"type": "integer"}, "text": {"type": "string"},
      "flag": {"type": "boolean"}, "list": {"type": "array"}, "any": {},
      "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "words": {"type": ["string", "null"]}}}}}])");
}
std::string Coder(std::string_view text) {
  return Show(ParseToolCalls(ToolFormat::kQwen3Coder, text, SchemasOfCalc()));
}

// As Falcon 3's template wants them, and as it shows those that were made.
TEST(ToolCallsTest, HermesMarksMayHoldAListOfCalls) {
  EXPECT_EQ(Hermes("<tool_call>\n[\n  {\"name\": \"f\", \"arguments\": {\"x\": 1}},\n  "
                   "{\"name\": \"g\", \"arguments\": {}}\n]\n</tool_call>"),
            "f{\"x\":1};g{};");
  EXPECT_EQ(Hermes("<tool_call>[{\"id\": \"abc\", \"type\": \"function\", \"function\": {\"name\": "
                   "\"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]</tool_call>"),
            "f{\"x\":1}abc;");
  for (const char* broken :
       {"<tool_call>[{}]</tool_call>", "<tool_call>[{\"function\": {}}]</tool_call>",
        "<tool_call>{\"function\": \"f\"}</tool_call>", "<tool_call>[</tool_call>"})
    EXPECT_EQ(Hermes(broken), "?;") << broken;
}

TEST(ToolCallsTest, GranitesCallsAreJsonBehindAMark) {
  const auto granite = [](std::string_view text) {
    return Show(ParseToolCalls(ToolFormat::kGranite, text));
  };
  const std::string f = R"({"name": "f", "arguments": {"x": "]"}})", g = R"({"name": "g"})";
  EXPECT_EQ(granite("It is 4."), "");
  EXPECT_EQ(granite("<|tool_call|>[" + f + ", " + g + "]"), "f{\"x\":\"]\"};g{};");
  EXPECT_EQ(granite("<|tool_call|>[" + f + "]<|/tool_call|>"), "f{\"x\":\"]\"};");
  EXPECT_EQ(granite("<|tool_call|>" + f + "<|/tool_call|><|tool_call|>" + g + "<|/tool_call|>"),
            "f{\"x\":\"]\"};g{};");
  EXPECT_EQ(granite("So:\n<TOOLCALL>[" + f + "]</TOOLCALL>\n"), "f{\"x\":\"]\"};");
  for (const std::string& broken :
       std::vector<std::string>{"<|tool_call|>", "<TOOLCALL></TOOLCALL>", "<|tool_call|>[" + f,
                                "<|tool_call|>[" + f + "] and so on", "<|tool_call|>f(x=1)"})
    EXPECT_EQ(granite(broken), "?;") << broken;
}

TEST(ToolCallsTest, Olmo3sCallsArePythons) {
  const auto olmo = [](std::string_view text) {
    return Show(ParseToolCalls(ToolFormat::kOlmo3, text));
  };
  EXPECT_EQ(olmo("It is f(x=1)."), "");
  EXPECT_EQ(olmo("<function_calls>f(x=1, s='a)')</function_calls>"), "f{\"x\":1,\"s\":\"a)\"};");
  EXPECT_EQ(olmo("I look.\n<function_calls>\nf(x=[true, None])\nm.g()\n</function_calls>"),
            "f{\"x\":[true,null]};m.g{};");
  EXPECT_EQ(olmo("<function_calls></function_calls>"), "");
  EXPECT_EQ(olmo("<function_calls>f(x=1)\nf(1)\ng()</function_calls>"), "f{\"x\":1};?;");
  for (const char* broken : {"<function_calls>f(x=1)", "<function_calls>f(x=1</function_calls>",
                             "<function_calls>{\"name\": \"f\"}</function_calls>"})
    EXPECT_EQ(olmo(broken), "?;") << broken;
}

TEST(ToolCallsTest, DeepseeksCallsStandBetweenItsOwnMarks) {
  const auto deepseek = [](std::string_view text) {
    return Show(ParseToolCalls(ToolFormat::kDeepseek, text));
  };
  const std::string all = "<｜tool▁calls▁begin｜>", all_end = "<｜tool▁calls▁end｜>",
                    begin = "<｜tool▁call▁begin｜>", end = "<｜tool▁call▁end｜>",
                    sep = "<｜tool▁sep｜>";
  const auto older = [&](const std::string& name, const std::string& arguments) {
    return begin + "function" + sep + name + "\n```json\n" + arguments + "\n```" + end;
  };
  EXPECT_EQ(deepseek("It is 4."), "");
  EXPECT_EQ(deepseek(all + begin + "f" + sep + R"({"x": "```"})" + end + begin + "g" + sep + "{}" +
                     end + all_end),
            "f{\"x\":\"```\"};g{};");
  EXPECT_EQ(deepseek("So.\n" + all + older("f", R"({"x": "```json"})") + "\n" + older("g", "{}") +
                     all_end),
            "f{\"x\":\"```json\"};g{};");
  EXPECT_EQ(deepseek(older("f", "{}")), "f{};");
  for (const std::string& broken :
       {all, all + all_end, begin, begin + "f", begin + "f" + sep + "{}", begin + "f" + end,
        begin + sep + "{}" + end, begin + "f" + sep + "[1]" + end, older("f", "{"),
        older("", "{}")})
    EXPECT_EQ(deepseek(broken), "?;") << broken;
}

// As Qwen3-Coder's template writes them. What is no text is so by the tool's schema alone.
TEST(ToolCallsTest, Qwen3CodersCallsAreFunctionsOfParameters) {
  EXPECT_EQ(Coder("The answer is 4."), "");
  EXPECT_EQ(Coder("Let me see.\n<tool_call>\n<function=calc>\n<parameter=x>\n12\n</parameter>\n"
                  "<parameter=text>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
                  "<function=now>\n</function>\n</tool_call>"),
            "calc{\"x\":12,\"text\":\"12\"};now{};");
  EXPECT_EQ(Coder("<tool_call><function=calc><parameter=text>\n two\n\nlines \n</parameter>"
                  "<parameter=flag>true</parameter><parameter=list>[1, \"a\"]</parameter>"
                  "<parameter=x>1 + </parameter><parameter=any>3</parameter>"
                  "<parameter=other>4</parameter></function></tool_call>"),
            "calc{\"text\":\" two\\n\\nlines \",\"flag\":true,\"list\":[1,\"a\"],\"x\":\"1 + \","
            "\"any\":\"3\",\"other\":\"4\"};");
  for (const char* broken :
       {"<tool_call>", "<tool_call><function=", "<tool_call><function=calc>",
        "<tool_call>\n<function=></function>", "<function=calc</function>",
        "<function=calc><parameter=x>1</function>",
        "<function=calc><parameter=x>1</parameter><parameter=x>2</parameter></function>",
        "<tool_call>{\"name\": \"calc\"}</tool_call>"})
    EXPECT_EQ(Coder(broken), "?;") << broken;
}

// As pydantic writes an optional value down.
TEST(ToolCallsTest, AParameterMayHaveSeveralTypes) {
  const auto call = [](const std::string& name, const std::string& value) {
    return Coder("<tool_call><function=calc><parameter=" + name + ">\n" + value +
                 "\n</parameter></function></tool_call>");
  };
  EXPECT_EQ(call("maybe", "12"), "calc{\"maybe\":12};");
  EXPECT_EQ(call("maybe", "null"), "calc{\"maybe\":null};");
  EXPECT_EQ(call("words", "12"), "calc{\"words\":\"12\"};");
  EXPECT_EQ(call("words", "None"), "calc{\"words\":null};");
}

TEST(ToolCallsTest, SchemasMayBeAnything) {
  const std::string text =
      "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>";
  for (const char* schemas :
       {"null", "3", "[]", "[1]", R"([{"function": null}])", R"([{"function": {"name": 1}}])",
        R"([{"function": {"name": "f", "parameters": null}}])",
        R"([{"function": {"name": "f", "parameters": {"properties": [1]}}}])",
        R"([{"function": {"name": "f", "parameters": {"properties": {"x": 1}}}}])",
        R"([{"function": {"name": "f", "parameters": {"properties": {"x": {"anyOf": 1}}}}}])"}) {
    const auto calls = ParseToolCalls(ToolFormat::kQwen3Coder, text, Json::parse(schemas));
    EXPECT_EQ(Show(calls), "f{\"x\":\"1\"};") << schemas;
  }
}

// As Seed-OSS's template prints what is no text.
TEST(ToolCallsTest, ParametersMayBeWrittenAsPythonDoes) {
  const auto list = [](std::string_view value) {
    return Coder("<seed:tool_call><function=calc><parameter=list>" + std::string(value) +
                 "</parameter></function></seed:tool_call>");
  };
  EXPECT_EQ(list("['a', \"it's\", 'b\\'c\\n', True, False, None, 1.5, {'k': 'True'}]"),
            "calc{\"list\":[\"a\",\"it's\",\"b'c\\n\",true,false,null,1.5,{\"k\":\"True\"}]};");
  EXPECT_EQ(list("['a"), "calc{\"list\":\"['a\"};");
  EXPECT_EQ(list("[1, print]"), "calc{\"list\":\"[1, print]\"};");
}

TEST(ToolCallsTest, MistralCallsAreAList) {
  EXPECT_EQ(Mistral("It is 4."), "");
  EXPECT_EQ(Mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"abc\"}, "
                    "{\"name\": \"g\", \"arguments\": {}}]"),
            "f{\"x\":1}abc;g{};");
  EXPECT_EQ(Mistral("[TOOL_CALLS]{\"name\": \"f\"}"), "?;");
  EXPECT_EQ(Mistral("[TOOL_CALLS][{\"name\": \"f\"}"), "?;");
  EXPECT_EQ(Mistral("[TOOL_CALLS][]"), "");
}

TEST(ToolCallsTest, NewerMistralsNameACallAndItsArguments) {
  EXPECT_EQ(Mistral("[TOOL_CALLS]f[ARGS]{\"x\": 1}"), "f{\"x\":1};");
  EXPECT_EQ(Mistral("Well.[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"x\": \"[ARGS]\"}[TOOL_CALLS]g[ARGS]{}"),
            "f{\"x\":\"[ARGS]\"}abc;g{};");
  EXPECT_EQ(Mistral("[TOOL_CALLS]f"), "?;");
  EXPECT_EQ(Mistral("[TOOL_CALLS]f[ARGS]{"), "?;");
  EXPECT_EQ(Mistral("[TOOL_CALLS]f[ARGS][1]"), "?;");
  EXPECT_EQ(Mistral("[TOOL_CALLS][ARGS]{}[TOOL_CALLS]g[ARGS]{}"), "?;g{};");
  EXPECT_EQ(Mistral("[TOOL_CALLS][CALL_ID]a"), "?;");
}

TEST(ToolCallsTest, TemplatesSayWhichFormatTheyWrite) {
  EXPECT_EQ(FormatOf("... '\\n<tool_call>\\n{\"name\": \"' ..."), ToolFormat::kHermes);
  EXPECT_EQ(FormatOf("{{- '[TOOL_CALLS] [' }}"), ToolFormat::kMistral);
  EXPECT_EQ(FormatOf("{{- '<|python_tag|>' + x }}"), ToolFormat::kLlama3Json);
  EXPECT_EQ(FormatOf("ipython {{- '\"parameters\": ' }}"), ToolFormat::kLlama3Json);
  EXPECT_EQ(FormatOf("<tool_call>\\n<function=' + f + '>\\n<parameter="), ToolFormat::kQwen3Coder);
  EXPECT_EQ(FormatOf("<tool_call>\\n<function="), std::nullopt);
  EXPECT_EQ(FormatOf("<tool_call>{{ name }}\\n<arg_key>"), std::nullopt);
  EXPECT_EQ(FormatOf("<tool_call>\\n<invoke name="), std::nullopt);
  EXPECT_EQ(FormatOf("respond only with <|tool_call|> followed by"), ToolFormat::kGranite);
  EXPECT_EQ(FormatOf("{{- '<TOOLCALL>[' -}}"), ToolFormat::kGranite);
  EXPECT_EQ(FormatOf("{{ '<function_calls>' + x + '</function_calls>' }}"), ToolFormat::kOlmo3);
  EXPECT_EQ(FormatOf("{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type}}"),
            ToolFormat::kDeepseek);
  EXPECT_EQ(FormatOf("'<function_calls>' '<invoke name='"), std::nullopt);
  // Llama 4's, and Gemma 4's.
  EXPECT_EQ(FormatOf("ipython {{- '<|python_start|>' }} {{- '\"parameters\": ' }}"), std::nullopt);
  EXPECT_EQ(FormatOf("{{- '<|tool_call>call:' + name }}"), std::nullopt);
  EXPECT_EQ(FormatOf("{{ message.content }}"), std::nullopt);
}

// Nothing is thrown, and nothing takes more time than in proportion to the text.
TEST(ToolCallsTest, HostileTextsAreReadToTheirEnd) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "[TOOL_CALLS]",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           "\"name\"",
                                           ":",
                                           "\"f\"",
                                           "\"arguments\"",
                                           "\"parameters\"",
                                           ",",
                                           ";",
                                           "\\",
                                           "\xFF",
                                           "<|python_tag|>",
                                           "1e999",
                                           "<function_calls>",
                                           "</function_calls>",
                                           "<｜tool▁call▁begin｜>",
                                           "<｜tool▁call▁end｜>",
                                           "<｜tool▁sep｜>",
                                           "```",
                                           "f(x=",
                                           "'",
                                           ")",
                                           " "};
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t i = random() % 20; i-- > 0;) text += pieces[random() % pieces.size()];
    for (const ToolFormat format :
         {ToolFormat::kHermes, ToolFormat::kLlama3Json, ToolFormat::kMistral,
          ToolFormat::kQwen3Coder, ToolFormat::kOlmo3, ToolFormat::kDeepseek}) {
      for (const ToolCall& call : ParseToolCalls(format, text))
        EXPECT_TRUE(!call.problem.empty() || call.arguments.is_object()) << text;
    }
  }
  const std::string deep(100'000, '{');
  for (const std::string& begin :
       {std::string("<tool_call>"), std::string("<|python_tag|>"), std::string("[TOOL_CALLS]")})
    EXPECT_LE(ParseToolCalls(ToolFormat::kLlama3Json, begin + deep).size(), 1U);
}

TEST(TurnRuleTest, TurnsAreCounted) {
  const auto bytes = model::MakeByteTokenizer();
  const auto next = [&](const MultiTurnSection& options, const std::string& text,
                        std::vector<TokenRange> given) {
    std::vector<int32_t> response(text.begin(), text.end());
    response.push_back(*bytes->eos());
    return TurnRule(options, ToolFormat::kHermes, *bytes, {*bytes->eos()}).Next(response, given);
  };
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const auto size = static_cast<int64_t>(call.size());
  MultiTurnSection options;
  EXPECT_EQ(next(options, call + call, {}).size(), 1U) << "max_parallel_calls";
  options.max_parallel_calls = 5;
  EXPECT_EQ(next(options, call + call, {}).size(), 2U);
  EXPECT_EQ(next(options, call + "4", {{0, size}}).size(), 0U) << "of the last turn alone";
  EXPECT_EQ(next(options, "4" + call, {{0, 1}}).size(), 1U);
  options.max_assistant_turns = 2;
  EXPECT_EQ(next(options, "4" + call, {}).size(), 1U);
  EXPECT_EQ(next(options, "4" + call, {{0, 1}}).size(), 0U);
  options.max_assistant_turns.reset();
  options.max_user_turns = 1;
  EXPECT_EQ(next(options, "4" + call, {}).size(), 1U);
  EXPECT_EQ(next(options, "4" + call, {{0, 1}}).size(), 0U);
}

}  // namespace
}  // namespace keel::turns
