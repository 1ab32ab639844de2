#include "turns/tool_use.h"

#include <gtest/gtest.h>

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

TEST(ToolUseTest, WhatIsNoMemoryIsRefused) {
  for (const char* text : {"{", "[]", "{}", R"({"use": {}, "states": {}})", "null",
                           R"({"use": {"calls": 1}, "states": []})"})
    EXPECT_EQ(ToolMemory::Parse(text).status().code(), StatusCode::kInvalidData) << text;
}

}  // namespace
}  // namespace keel::turns
