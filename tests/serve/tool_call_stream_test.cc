#include "serve/tool_call_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace keel::serve {
namespace {

using turns::ToolFormat;

// The content, then each call as "name{arguments}"; `step` bytes at a time. What is content, and
// what a call, must not depend on that.
std::vector<std::string> Read(ToolFormat format, const std::string& text, bool parallel = true,
                              const Json& schemas = {}) {
  std::vector<std::vector<std::string>> found;
  for (const size_t step : {size_t{1}, size_t{2}, size_t{5}, text.size() + 1}) {
    ToolCallStream stream(format, parallel, schemas);
    std::vector<std::string> all = {""};
    for (size_t at = 0; at <= text.size(); at += step) {
      const bool last = at + step > text.size();
      const ToolCallStream::Part part = stream.Add(text.substr(at, step), last);
      all[0] += part.content;
      for (const turns::ToolCall& call : part.calls)
        all.push_back(call.name + call.arguments.dump());
    }
    found.push_back(all);
  }
  for (const auto& other : found) EXPECT_EQ(other, found[0]) << text;
  return found[0];
}

using Parts = std::vector<std::string>;

TEST(ToolCallStreamTest, Hermes) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kHermes, text); };
  const std::string one = R"(<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>)";
  const std::string two = R"(<tool_call>{"name": "g", "arguments": {}}</tool_call>)";
  EXPECT_EQ(read("no call < at all \n"), Parts{"no call < at all \n"});
  EXPECT_EQ(read(one), (Parts{"", R"(f{"x":1})"}));
  EXPECT_EQ(read("I look.\n\n" + one + "\n" + two + "\n"),
            (Parts{"I look.", R"(f{"x":1})", "g{}"}));
  EXPECT_EQ(read(one + "and" + two), (Parts{"and", R"(f{"x":1})", "g{}"}));
  // What cannot be read stays as it was written.
  EXPECT_EQ(read("a <tool_call>{no JSON}</tool_call>"), Parts{"a <tool_call>{no JSON}</tool_call>"});
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\""), Parts{"<tool_call>{\"name\": \"f\""});
  EXPECT_EQ(read(one + "<tool_call>{"), (Parts{"<tool_call>{", R"(f{"x":1})"}));
  EXPECT_EQ(Read(ToolFormat::kHermes, one + two, false), (Parts{"", R"(f{"x":1})"}));
  // A list of calls, of which none is no call.
  EXPECT_EQ(read(R"(<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>)"),
            (Parts{"", "f{}", "g{}"}));
  EXPECT_EQ(read("<tool_call>[]</tool_call>"), Parts{"<tool_call>[]</tool_call>"});
}

TEST(ToolCallStreamTest, Llama3Json) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kLlama3Json, text); };
  const std::string one = R"({"name": "f", "parameters": {"x": "}"}})";
  EXPECT_EQ(read(one), (Parts{"", R"(f{"x":"}"})"}));
  EXPECT_EQ(read(" <|python_tag|>" + one + "; " + one),
            (Parts{"", R"(f{"x":"}"})", R"(f{"x":"}"})"}));
  EXPECT_EQ(read("Of course: " + one), Parts{"Of course: " + one});
  EXPECT_EQ(read("{\"names\": 1} "), Parts{"{\"names\": 1} "});
  EXPECT_EQ(read("{\"name\": "), Parts{"{\"name\": "});
  EXPECT_EQ(read("<|py"), Parts{"<|py"});
  EXPECT_EQ(read(R"({"type": "function", "name": "g"})"), (Parts{"", "g{}"}));
  EXPECT_EQ(read(R"({"type": "fun"})"), Parts{R"({"type": "fun"})"});
  EXPECT_EQ(read(R"({"type": "function", "na)"), Parts{R"({"type": "function", "na)"});
  // What stands behind the calls is not lost.
  EXPECT_EQ(read(one + "\n" + one + "\nSo I look. "),
            (Parts{"\nSo I look.", R"(f{"x":"}"})", R"(f{"x":"}"})"}));
  EXPECT_EQ(read(one + "\n{\"result\": 4}"), (Parts{"\n{\"result\": 4}", R"(f{"x":"}"})"}));
  EXPECT_EQ(read(one + "; nothing"), Parts{one + "; nothing"});
  EXPECT_EQ(read(""), Parts{""});
}

TEST(ToolCallStreamTest, Mistral) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kMistral, text); };
  EXPECT_EQ(read(R"([TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"},
                    {"name": "g", "arguments": {}}])"),
            (Parts{"", R"(f{"x":1})", "g{}"}));
  EXPECT_EQ(read("[TOOL_CALLS] what"), Parts{"[TOOL_CALLS] what"});
  EXPECT_EQ(read("a [list] of [TOOL"), Parts{"a [list] of [TOOL"});
}

// A value is what its tool's schema says, as in training; what follows a call is not lost.
TEST(ToolCallStreamTest, Qwen3Coder) {
  const Json schemas = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}}}])");
  const auto read = [&](const std::string& text, bool parallel = true) {
    return Read(ToolFormat::kQwen3Coder, text, parallel, schemas);
  };
  const std::string inner =
      "<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\n1\n</parameter>\n</function>";
  const std::string one = "<tool_call>\n" + inner + "\n</tool_call>";
  const std::string call = R"(f{"x":1,"s":"1"})";
  EXPECT_EQ(read("no call < at <all \n"), Parts{"no call < at <all \n"});
  EXPECT_EQ(read(one), (Parts{"", call}));
  EXPECT_EQ(read("I look.\n" + one + "\n" + one + " Done."), (Parts{"I look. Done.", call, call}));
  EXPECT_EQ(read(one + one, false), (Parts{"", call}));
  EXPECT_EQ(read("<seed:tool_call>" + inner + "</seed:tool_call>"), (Parts{"", call}));
  EXPECT_EQ(read("So: " + inner + " and"), (Parts{"So: and", call}));
  EXPECT_EQ(read("<tool_call>\n" + inner), (Parts{"", call}));
  EXPECT_EQ(read("a <tool_call>\n<function=f>"), Parts{"a <tool_call>\n<function=f>"});
}

TEST(ToolCallStreamTest, Granite) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kGranite, text); };
  const std::string one = R"([{"name": "f", "arguments": {"x": 1}}, {"name": "g"}])";
  const std::string call = R"(f{"x":1})";
  EXPECT_EQ(read("no call <|tool"), Parts{"no call <|tool"});
  EXPECT_EQ(read("<|tool_call|>" + one), (Parts{"", call, "g{}"}));
  EXPECT_EQ(read("<|tool_call|>" + one + "<|/tool_call|> Done."), (Parts{" Done.", call, "g{}"}));
  EXPECT_EQ(read("So:\n<TOOLCALL>" + one + "</TOOLCALL>"), (Parts{"So:", call, "g{}"}));
  EXPECT_EQ(read("<|tool_call|>[]"), Parts{"<|tool_call|>[]"});
  EXPECT_EQ(read("<|tool_call|>" + one + " Done."), Parts{"<|tool_call|>" + one + " Done."});
}

TEST(ToolCallStreamTest, Olmo3) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kOlmo3, text); };
  const std::string two = "<function_calls>\nf(x=1)\ng()\n</function_calls>";
  EXPECT_EQ(read("no call <function_"), Parts{"no call <function_"});
  EXPECT_EQ(read("I look.\n" + two), (Parts{"I look.", R"(f{"x":1})", "g{}"}));
  EXPECT_EQ(read("<function_calls>f(1)</function_calls>"),
            Parts{"<function_calls>f(1)</function_calls>"});
}

TEST(ToolCallStreamTest, Deepseek) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kDeepseek, text); };
  const std::string
      f = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>",
      g = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>";
  const std::string call = R"(f{"x":1})";
  EXPECT_EQ(read("no call <｜tool▁c"), Parts{"no call <｜tool▁c"});
  EXPECT_EQ(read("So:\n<｜tool▁calls▁begin｜>" + f + "\n" + g + "<｜tool▁calls▁end｜>"),
            (Parts{"So:", call, "g{}"}));
  EXPECT_EQ(read(f + g), (Parts{"", call, "g{}"}));
  EXPECT_EQ(read("<｜tool▁calls▁begin｜>" + f), (Parts{"", call}));
  EXPECT_EQ(read("<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
            Parts{"<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"});
}

TEST(ToolCallStreamTest, NewerMistral) {
  const auto read = [](const std::string& text) { return Read(ToolFormat::kMistral, text); };
  EXPECT_EQ(read(R"(Well.[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{})"),
            (Parts{"Well.", R"(f{"x":1})", "g{}"}));
  // All of its marks are special tokens, which a text is otherwise shown without.
  const std::vector<std::string_view> marks = ToolCallMarks();
  for (const std::string_view mark :
       {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<seed:tool_call>", "</seed:tool_call>",
        "<|tool_call|>", "<|/tool_call|>", "<function_calls>", "</function_calls>",
        "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"})
    EXPECT_NE(std::find(marks.begin(), marks.end(), mark), marks.end()) << mark;
}

}  // namespace
}  // namespace keel::serve
