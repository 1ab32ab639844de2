#include "turns/tool_round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keel::turns {
namespace {

using ::testing::HasSubstr;

ToolCall Call(const std::string& name, const std::string& problem = "") {
  ToolCall call;
  call.name = name;
  call.problem = problem;
  return call;
}

ToolReply Said(const std::string& response, const Json& state) {
  ToolReply reply;
  reply.response = response;
  reply.state = state;
  return reply;
}

TEST(ToolRoundTest, CallsOfOneToolGoOnFromEachOthersState) {
  ToolMemory memory;
  memory.states["a"] = 1;
  ToolRound round({Call("a"), Call("a"), Call("b")}, memory, {"a", "b"});
  std::vector<ToolRequest> due = round.Due();
  ASSERT_EQ(due.size(), 2U);
  EXPECT_EQ(due[0].id, 0);
  EXPECT_EQ(due[0].state, Json(1));
  EXPECT_EQ(due[1].id, 2);
  EXPECT_EQ(due[1].state, Json());
  EXPECT_TRUE(round.Due().empty());
  round.Take(2, Said("B", "b1"));
  EXPECT_TRUE(round.Due().empty());
  round.Take(0, Said("A", 2));
  due = round.Due();
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].id, 1);
  EXPECT_EQ(due[0].state, Json(2));
  EXPECT_FALSE(round.done());
  ToolReply late;
  late.error = "too slow";
  late.timed_out = true;
  late.reward = 0.5;
  round.Take(1, late);
  ASSERT_TRUE(round.done());
  const ToolRound::Outcome outcome = round.Finish({});
  EXPECT_EQ(outcome.texts, (std::vector<std::string>{"A", "error: too slow", "B"}));
  EXPECT_EQ(outcome.memory.states, (std::map<std::string, Json>{{"a", 2}, {"b", "b1"}}));
  EXPECT_EQ(outcome.memory.use, (ToolUse{3, 1, 1, 0, {0.5}}));
}

TEST(ToolRoundTest, ACallThatCannotBeMadeHasItsResultAtOnce) {
  ToolMemory before;
  before.use = {1, 0, 0, 0, {1.0}};
  ToolRound round({Call("", "it is torn"), Call("c")}, before, {"a", "b"});
  EXPECT_TRUE(round.Due().empty());
  ASSERT_TRUE(round.done());
  MultiTurnSection options;
  options.max_tool_response_length = 30;
  options.tool_response_truncate_side = TruncateSide::kLeft;
  const ToolRound::Outcome outcome = round.Finish(options);
  EXPECT_THAT(outcome.texts[0], HasSubstr("cannot be rea"));
  EXPECT_THAT(outcome.texts[0], HasSubstr("...(truncated)"));
  EXPECT_THAT(outcome.texts[1], HasSubstr("there is no tool c"));
  EXPECT_EQ(outcome.memory.use, (ToolUse{3, 2, 0, 2, {1.0}}));
}

}  // namespace
}  // namespace keel::turns
