#include "tools/launch/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace keel::tools {
namespace {

NodeEnd Failed(Blame blame, int exit_code, int64_t order = NodeEnd::kUnreported) {
  NodeEnd end;
  end.failure = Failure{blame, exit_code, "rank 3 ended", "why", "logs/3"};
  end.order = order;
  return end;
}

TEST(VerdictTest, AllWellIsNoCause) {
  const Verdict verdict = Decide(std::vector<NodeEnd>(3), 0, 5);
  EXPECT_EQ(verdict.exit_code, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_FALSE(verdict.cause);
}

TEST(VerdictTest, MoreBlameComesFirstWhereverItIs) {
  // The exit codes stand for the blames, in the order of the enumeration.
  const std::vector<NodeEnd> by_blame = {
      Failed(Blame::kKilled, 137, 5), Failed(Blame::kFailed, 1, 4),
      Failed(Blame::kPreempted, 75, 3), Failed(Blame::kLostPeer, 69, 2),
      Failed(Blame::kEnded, 143, 1)};
  for (size_t worst = 0; worst < by_blame.size(); ++worst) {
    std::vector<NodeEnd> nodes(by_blame.begin() + static_cast<std::ptrdiff_t>(worst),
                               by_blame.end());
    nodes.emplace_back();
    for (size_t turn = 0; turn < nodes.size(); ++turn) {
      EXPECT_EQ(Decide(nodes, 0, 0).exit_code, by_blame[worst].failure->exit_code);
      std::rotate(nodes.begin(), nodes.begin() + 1, nodes.end());
    }
  }
}

TEST(VerdictTest, OfEqualBlameTheFirstNoticed) {
  const std::vector<NodeEnd> nodes = {Failed(Blame::kFailed, 1), Failed(Blame::kFailed, 2, 2),
                                      Failed(Blame::kFailed, 3, 1), Failed(Blame::kFailed, 4)};
  EXPECT_EQ(Decide(nodes, 0, 0).exit_code, 3);
}

TEST(VerdictTest, RestartsWhatMayHeal) {
  const auto restarts = [](NodeEnd end, int attempt, int max_restarts) {
    return Decide(std::vector<NodeEnd>{NodeEnd(), end}, attempt, max_restarts).restart;
  };
  EXPECT_TRUE(restarts(Failed(Blame::kFailed, 1), 0, 1));
  EXPECT_TRUE(restarts(Failed(Blame::kKilled, 137), 1, 2));
  EXPECT_TRUE(restarts(Failed(Blame::kLostPeer, 69), 0, 1));
  EXPECT_FALSE(restarts(Failed(Blame::kFailed, 1), 0, 0)) << "none allowed";
  EXPECT_FALSE(restarts(Failed(Blame::kFailed, 1), 2, 2)) << "all used up";
  for (const int code : {64, 65, 66, 75, 78}) {
    EXPECT_FALSE(restarts(Failed(Blame::kFailed, code), 0, 1)) << code;
  }
  NodeEnd stopped = Failed(Blame::kFailed, 1);
  stopped.last = true;
  EXPECT_FALSE(restarts(stopped, 0, 1)) << "told to stop";
}

TEST(VerdictTest, ARestartWaitsForLostNodes) {
  std::vector<NodeEnd> nodes(4);
  for (const size_t node : {1, 3}) {
    nodes[node].lost = true;
    nodes[node].order = static_cast<int64_t>(node);
    nodes[node].failure = Failure{Blame::kFailed, 69, "was lost", "", ""};
  }
  const Verdict verdict = Decide(nodes, 0, 1);
  EXPECT_TRUE(verdict.restart);
  EXPECT_EQ(verdict.awaited, (std::vector<int>{1, 3}));
  EXPECT_EQ(ValueOrThrow(Verdict::FromText(verdict.ToText())).awaited, verdict.awaited);
  // Nobody waits where none follows.
  EXPECT_TRUE(Decide(nodes, 1, 1).awaited.empty());
  nodes[0].last = true;
  EXPECT_TRUE(Decide(nodes, 0, 1).awaited.empty());
}

TEST(VerdictTest, TravelsAsText) {
  NodeEnd end = Failed(Blame::kLostPeer, 69, 7);
  end.last = true;
  const NodeEnd back = ValueOrThrow(NodeEnd::FromText(end.ToText()));
  ASSERT_TRUE(back.failure);
  EXPECT_EQ(back.failure->blame, Blame::kLostPeer);
  EXPECT_EQ(back.failure->exit_code, 69);
  EXPECT_EQ(back.failure->what, "rank 3 ended");
  EXPECT_EQ(back.failure->message, "why");
  EXPECT_EQ(back.failure->output, "logs/3");
  EXPECT_EQ(back.order, 7);
  EXPECT_TRUE(back.last);
  EXPECT_FALSE(ValueOrThrow(NodeEnd::FromText(NodeEnd().ToText())).failure);

  const Verdict verdict = Decide(std::vector<NodeEnd>{Failed(Blame::kKilled, 139)}, 0, 1);
  const Verdict copy = ValueOrThrow(Verdict::FromText(verdict.ToText()));
  EXPECT_EQ(copy.exit_code, 139);
  EXPECT_TRUE(copy.restart);
  ASSERT_TRUE(copy.cause);
  EXPECT_EQ(copy.cause->what, "rank 3 ended");
}

TEST(VerdictTest, AnyMessageTravels) {
  NodeEnd end = Failed(Blame::kFailed, 1);
  end.failure->message = "bytes \xff\xfe\n" + std::string(20'000'000, 'x');
  const std::string text = end.ToText();
  EXPECT_LT(text.size(), size_t{1} << 16) << "a store takes no more than some megabytes";
  const NodeEnd back = ValueOrThrow(NodeEnd::FromText(text));
  EXPECT_EQ(back.failure->message.substr(0, 6), "bytes ");
  EXPECT_TRUE(back.failure->message.ends_with("x ..."));
}

TEST(VerdictTest, NonsenseIsAnError) {
  for (const char* text : {"", "{", "[]", "{}", R"({"order": 1, "last": true, "failure": 3})"}) {
    EXPECT_FALSE(NodeEnd::FromText(text).ok()) << text;
    EXPECT_FALSE(Verdict::FromText(text).ok()) << text;
  }
}

}  // namespace
}  // namespace keel::tools
