#include "serve/tool_call_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::serve {
namespace {

using turns::ToolFormat;

// The content, then each call as "name{arguments}"; `step` bytes at a time. What is content, and
// what a call, must not depend on that.
std::vector<std::string> Read(ToolFormat format, const std::string& text, bool parallel = true) {
  std::vector<std::vector<std::string>> found;
  for (const size_t step : {size_t{1}, size_t{2}, size_t{5}, text.size() + 1}) {
    ToolCallStream stream(format, parallel);
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
  EXPECT_EQ(read("a <tool_call>{no JSON}</tool_call>"), Parts{"a<tool_call>{no JSON}</tool_call>"});
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\""), Parts{"<tool_call>{\"name\": \"f\""});
  EXPECT_EQ(read(one + "<tool_call>{"), (Parts{"<tool_call>{", R"(f{"x":1})"}));
  EXPECT_EQ(Read(ToolFormat::kHermes, one + two, false), (Parts{"", R"(f{"x":1})"}));
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

}  // namespace
}  // namespace keel::serve
