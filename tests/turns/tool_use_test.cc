#include "turns/tool_use.h"

#include <gtest/gtest.h>

#include <string>

#include "turns/tool_server.h"

namespace keel::turns {
namespace {

TEST(ToolUseTest, MemoryComesBackAsItWas) {
  ToolMemory memory;
  memory.use = {4, 2, 1, 3, {0.5, -1}};
  memory.states = {{"calc", {{"last", 4}}}, {"search", "page 2"}};
  const ToolMemory back = ValueOrThrow(ToolMemory::Parse(memory.ToText()));
  EXPECT_EQ(back.use, memory.use);
  EXPECT_EQ(back.states, memory.states);
  EXPECT_EQ(back.use.reward(), -0.5);
  EXPECT_TRUE(ValueOrThrow(ToolMemory::Parse("")).use.empty());
}

// A reply is read to a depth of 64, and its state lies deeper in the memory.
TEST(ToolUseTest, EveryStateThatAReplyMayHoldComesBack) {
  const auto reply_with = [](size_t depth) {
    return ParseReply(R"({"id": 1, "response": "x", "state": )" + std::string(depth, '[') +
                          std::string(depth, ']') + "}",
                      1);
  };
  constexpr size_t kDeepest = 63;
  EXPECT_FALSE(reply_with(kDeepest + 1).ok());
  ToolMemory memory;
  memory.states["calc"] = ValueOrThrow(reply_with(kDeepest)).state.value();
  const auto back = ToolMemory::Parse(memory.ToText());
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->states, memory.states);
}

TEST(ToolUseTest, WhatIsNoMemoryIsRefused) {
  for (const char* text : {"{", "[]", "{}", R"({"use": {}, "states": {}})", "null",
                           R"({"use": {"calls": 1}, "states": []})"})
    EXPECT_EQ(ToolMemory::Parse(text).status().code(), StatusCode::kInvalidData) << text;
}

}  // namespace
}  // namespace keel::turns
