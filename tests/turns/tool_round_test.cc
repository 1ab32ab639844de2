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

ToolCall Told(const std::string& environment) {
  ToolCall call = Call(environment);
  call.to_environment = true;
  call.arguments["text"] = "7";
  return call;
}

// What it says is shown whole, it has a state as tools have, and it says when it is over.
TEST(ToolRoundTest, AnEnvironmentAnswersATurnUntilItIsDone) {
  MultiTurnSection options;
  options.max_tool_response_length = 4;
  ToolMemory memory;
  memory.states["guess"] = 1;
  ToolRound round({Told("guess")}, memory, {"a", "b"});
  const std::vector<ToolRequest> due = round.Due();
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(RequestText(due[0]),
            R"({"id":0,"interaction":"guess","text":"7","state":1,"interaction_kwargs":{},)"
            R"("extra_info":{}})");
  ToolRequest null = due[0];
  null.create_kwargs = nullptr;
  EXPECT_EQ(RequestText(null), RequestText(due[0]));
  null.to_environment = false;
  EXPECT_NE(RequestText(null).find(R"("create_kwargs":{})"), std::string::npos);
  ToolReply said = Said("higher than that", 2);
  said.reward = -1;
  round.Take(0, said);
  ToolRound::Outcome outcome = round.Finish(options);
  EXPECT_FALSE(outcome.over);
  EXPECT_EQ(outcome.texts, std::vector<std::string>{"higher than that"});
  EXPECT_EQ(outcome.memory.states, (std::map<std::string, Json>{{"guess", 2}}));
  EXPECT_EQ(outcome.memory.use, (ToolUse{1, 0, 0, 0, {-1.0}}));

  ToolRound last({Told("guess")}, outcome.memory, {"a"});
  static_cast<void>(last.Due());
  last.Take(0, ValueOrThrow(ParseReply(R"({"id": 0, "done": true, "reward": 1})", 0)));
  outcome = last.Finish(options);
  EXPECT_TRUE(outcome.over);
  EXPECT_EQ(outcome.memory.use, (ToolUse{2, 0, 0, 0, {-1.0, 1.0}}));
}

TEST(ToolRoundTest, AnEnvironmentThatFailsEndsTheResponse) {
  ToolRound round({Told("guess")}, {}, {});
  static_cast<void>(round.Due());
  ToolReply late;
  late.error = "the tool gave no answer in time";
  late.timed_out = true;
  round.Take(0, late);
  const ToolRound::Outcome outcome = round.Finish({});
  EXPECT_TRUE(outcome.over);
  EXPECT_EQ(outcome.memory.use, (ToolUse{1, 1, 1, 0, {}}));
}

TEST(ToolRoundTest, OnlyWhoIsDoneMaySayNothing) {
  EXPECT_EQ(ParseReply(R"({"id": 0})", 0).status().code(), StatusCode::kInvalidData);
  EXPECT_EQ(ParseReply(R"({"id": 0, "done": false})", 0).status().code(), StatusCode::kInvalidData);
  EXPECT_EQ(ParseReply(R"({"id": 0, "done": 1})", 0).status().code(), StatusCode::kInvalidData);
  EXPECT_TRUE(ValueOrThrow(ParseReply(R"({"id": 0, "done": true, "response": "x"})", 0)).done);
  EXPECT_FALSE(ValueOrThrow(ParseReply(R"({"id": 0, "done": null, "response": "x"})", 0)).done);
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
