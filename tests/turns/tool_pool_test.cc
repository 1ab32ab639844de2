// Tools that answer, fail, hang, lie and die; the pool around them.
#include "turns/tool_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/rewards/samples.h"

namespace keel::turns {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A tool of which `body` handles the object x of each line.
ToolSpec Tool(const std::string& body, int timeout_ms = 20'000, int64_t workers = 1) {
  ToolSpec tool;
  tool.name = "calc";
  tool.command = {
      rewards::Python(), "-c",
      "import sys, json, time, os\nfor line in sys.stdin:\n    x = json.loads(line)\n"
      "    say = lambda **r: print(json.dumps({'id': x['id'], **r}), flush=True)\n    " +
          body};
  tool.timeout = milliseconds(timeout_ms);
  tool.num_workers = workers;
  return tool;
}

ToolRequest Request(const Json& arguments, const Json& state = nullptr) {
  ToolRequest request;
  request.tool = "calc";
  request.arguments = arguments;
  request.state = state;
  return request;
}

// Each request's reply, in their order.
std::vector<ToolReply> Ask(ToolPool& pool, const std::vector<ToolRequest>& requests) {
  std::map<int64_t, size_t> places;
  for (size_t i = 0; i < requests.size(); ++i) places[pool.Submit(requests[i])] = i;
  std::vector<ToolReply> replies(requests.size());
  for (size_t open = requests.size(); open > 0;) {
    for (ToolReply& reply : pool.Poll(milliseconds(1000))) {
      replies[places.at(reply.id)] = std::move(reply);
      --open;
    }
  }
  return replies;
}

ToolReply AskOne(const ToolSpec& tool) {
  ToolPool pool({tool});
  return Ask(pool, {Request({{"n", 1}})}).front();
}

TEST(ToolPoolTest, CallsAreAnsweredWithStateAndReward) {
  ToolPool pool(
      {Tool("say(response=str(x['arguments']['n'] + (x['state'] or 0)), "
            "state=x['arguments']['n'], reward=0.5, note='unread')",
            20'000, 2)});
  ASSERT_TRUE(pool.Start().ok());
  std::vector<ToolRequest> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(Request({{"n", i}}, 100));
  const auto replies = Ask(pool, requests);
  for (int i = 0; i < 20; ++i) {
    const ToolReply& reply = replies[static_cast<size_t>(i)];
    EXPECT_EQ(reply.error, "");
    EXPECT_EQ(reply.response, std::to_string(i + 100));
    EXPECT_EQ(reply.state, Json(i));
    EXPECT_EQ(reply.reward, 0.5);
  }
}

TEST(ToolPoolTest, OneThatEndedComesBackAsTheSameOrNotAtAll) {
  const auto file = std::filesystem::path(::testing::TempDir()) /
                    ("keel_tool_" + std::to_string(getpid()) + ".py");
  const auto write = [&](const std::string& said) {
    std::ofstream(file)
        << "import sys, json, os\nfor line in sys.stdin:\n    x = json.loads(line)\n"
           "    if x['arguments']['n'] == 3: os._exit(3)\n"
           "    print(json.dumps({'id': x['id'], 'response': '"
        << said << "'}), flush=True)\n";
  };
  write("old");
  ToolSpec tool = Tool("");
  tool.command = {rewards::Python(), file};
  ToolPool pool({tool});
  const auto ask = [&](int n) { return Ask(pool, {Request({{"n", n}})}).front(); };
  EXPECT_EQ(ask(1).response, "old");
  EXPECT_NE(ask(3).error, "");
  EXPECT_EQ(ask(1).response, "old");
  write("new");
  EXPECT_EQ(ask(1).response, "old");  // it runs on
  EXPECT_NE(ask(3).error, "");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ask(1).problem, AllOf(HasSubstr("tool calc: the content of"),
                                      HasSubstr("has changed since the run began")));
  }
  write("old");
  EXPECT_EQ(ask(1).response, "old");
  std::filesystem::remove(file);
}

TEST(ToolPoolTest, WhatFailsCostsItsCallAlone) {
  ToolPool pool(
      {Tool("n = x['arguments']['n']\n"
            "    if n == 1: time.sleep(1000)\n"
            "    if n == 2: print('nonsense', flush=True)\n"
            "    if n == 3: os._exit(3)\n"
            "    if n == 4: x['id'] += 1\n"
            "    say(response='fine')",
            1500)});
  std::vector<ToolRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(Request({{"n", i}}));
  const auto replies = Ask(pool, requests);
  EXPECT_EQ(replies[0].response, "fine");
  EXPECT_THAT(replies[1].problem, AllOf(HasSubstr("tool calc"), HasSubstr("timeout_seconds")));
  EXPECT_TRUE(replies[1].timed_out);
  EXPECT_EQ(replies[1].error, "the tool gave no answer in time");
  EXPECT_EQ(replies[2].error, "the tool failed");
  EXPECT_THAT(replies[2].problem, HasSubstr("nonsense"));
  EXPECT_FALSE(replies[2].timed_out);
  EXPECT_THAT(replies[3].problem, HasSubstr("ended"));
  EXPECT_THAT(replies[4].problem, HasSubstr("which was not asked for"));
  EXPECT_EQ(replies[5].response, "fine");
}

// Python's own json.dumps writes an accented letter of two bytes as six.
TEST(ToolPoolTest, AStateIsAsLongAsItsTextHoweverItIsWritten) {
  const ToolReply long_one = AskOne(Tool("say(response='x', state='\u00e9' * (1 << 19))"));
  EXPECT_THAT(long_one.problem, HasSubstr("a state of more than"));
  const ToolReply reply = AskOne(Tool("say(response='y' * (1 << 20), state='\u00e9' * 500_000)"));
  EXPECT_EQ(reply.problem, "");
  EXPECT_EQ(reply.response.size(), size_t{1} << 20);
  ASSERT_TRUE(reply.state.has_value());
  EXPECT_EQ(reply.state->get_ref<const std::string&>().size(), 1'000'000u);
  EXPECT_THAT(AskOne(Tool("say(response='y' * (9 << 20))")).problem, HasSubstr("a line of more"));
}

// At once, or when the next call has been sent.
TEST(ToolPoolTest, ASecondReplyToACallFailsNoCall) {
  for (const char* pause : {"0", "0.05"}) {
    ToolPool pool({Tool(std::string("say(response=str(x['arguments']['n'])); time.sleep(") + pause +
                        "); say(response='again')")});
    std::vector<ToolRequest> requests;
    for (int i = 0; i < 5; ++i) requests.push_back(Request({{"n", i}}));
    const auto replies = Ask(pool, requests);
    std::string problems;
    for (size_t i = 0; i < replies.size(); ++i) {
      EXPECT_EQ(replies[i].error, "") << replies[i].problem;
      EXPECT_EQ(replies[i].response, std::to_string(i));
      problems += replies[i].problem;
    }
    EXPECT_THAT(problems, HasSubstr("a second reply to a call"));
  }
  EXPECT_THAT(
      AskOne(Tool("sys.stdout.write('{\"id\": %d, \"response\": \"x\"}\\nmore\\n' % x['id']); "
                  "sys.stdout.flush()"))
          .problem,
      HasSubstr("more than a reply to a call"));
}

TEST(ToolPoolTest, RepliesThatAreNone) {
  for (const auto& [body, what] : std::map<std::string, std::string>{
           {"say()", "response"},
           {"say(response=3)", "response"},
           {"say(response='x', reward='much')", "reward"},
           {"say(response='x', reward=1e308)", "within fp32"},
           {"say(response='x', reward=-1e39)", "within fp32"},
           {"print('[1]', flush=True)", "an object"},
           {"say(response='x', state='y' * (1 << 20))", "a state of more than"},
           {"say(response='x', reward=float('inf'))", "no JSON"}})
    EXPECT_THAT(AskOne(Tool(body)).problem, HasSubstr(what)) << body;
  const ToolReply own = AskOne(Tool("say(error='division by zero', reward=-1, state=[7])"));
  EXPECT_EQ(own.error, "division by zero");
  EXPECT_EQ(own.reward, -1);
  EXPECT_EQ(own.state, Json::array({7}));
}

// The test would outlast its own limit.
TEST(ToolPoolTest, ItsEndDoesNotWaitForAToolThatHangs) {
  const std::string file = ::testing::TempDir() + "tool_pool_hangs_" + std::to_string(getpid());
  ToolSpec tool = Tool("open('" + file + "', 'w').close(); time.sleep(3600)");
  tool.timeout = std::chrono::hours(1);
  ToolPool pool({tool});
  pool.Submit(Request({{"n", 1}}));
  pool.Submit(Request({{"n", 1}}));
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(milliseconds(10));
  std::filesystem::remove(file);
}

TEST(ToolPoolTest, WhatCannotBeStartedIsHeardOfAtTheStart) {
  ToolSpec tool = Tool("");
  tool.command = {"/no/such/tool"};
  EXPECT_THAT(ToolPool({tool}).Start().message(),
              AllOf(HasSubstr("tool calc"), HasSubstr("/no/such/tool")));
  tool.command.clear();
  tool.url = "http://127.0.0.1:1/";
  tool.timeout = milliseconds(1000);
  EXPECT_THAT(ToolPool({tool}).Start().message(),
              AllOf(HasSubstr("tool calc"), HasSubstr("start the service")));
  tool.url = "ftp://x";
  EXPECT_THROW(ToolPool({tool}), Error);
}

}  // namespace
}  // namespace keel::turns
