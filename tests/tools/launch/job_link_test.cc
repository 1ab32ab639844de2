#include "tools/launch/job_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace keel::tools {
namespace {

using std::chrono::milliseconds;

// What the clients of one job share.
struct Server {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  bool gone = false;    // every call fails at once
  bool silent = false;  // no call returns
};

class MemoryStore final : public JobStore {
 public:
  explicit MemoryStore(std::shared_ptr<Server> server) : server_(std::move(server)) {}
  Status Set(const std::string& key, const std::string& value) override {
    std::unique_lock lock(server_->mutex);
    KEEL_RETURN_IF_ERROR(Answer(lock));
    server_->values[key] = value;
    return Status::Ok();
  }
  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    std::unique_lock lock(server_->mutex);
    KEEL_RETURN_IF_ERROR(Answer(lock));
    const auto it = server_->values.find(key);
    if (it == server_->values.end()) return std::optional<std::string>();
    return std::optional<std::string>(it->second);
  }
  Result<int64_t> Add(const std::string& key, int64_t amount) override {
    std::unique_lock lock(server_->mutex);
    KEEL_RETURN_IF_ERROR(Answer(lock));
    std::string& value = server_->values[key];
    const int64_t sum = std::atoll(value.c_str()) + amount;
    value = std::to_string(sum);
    return sum;
  }

 private:
  Status Answer(std::unique_lock<std::mutex>& lock) {
    server_->changed.wait(lock, [&] { return !server_->silent; });
    return server_->gone ? Status(StatusCode::kUnavailable, "connection reset") : Status::Ok();
  }
  std::shared_ptr<Server> server_;
};

class JobLinkTest : public ::testing::Test {
 protected:
  ~JobLinkTest() override {
    const std::lock_guard lock(server_->mutex);
    server_->silent = false;  // lets go of threads that were left behind
    server_->changed.notify_all();
  }

  JobLinkOptions Options(int node, int nnodes) const {
    JobLinkOptions options;
    options.node = node;
    options.nnodes = nnodes;
    options.address = "10.0.0.1:29500";
    options.agreement = "--nproc-per-node 4";
    options.interval = milliseconds(5);
    return options;
  }
  std::unique_ptr<JobLink> Link(const JobLinkOptions& options) {
    return std::make_unique<JobLink>(options, [server = server_] {
      return Result<std::unique_ptr<JobStore>>(std::make_unique<MemoryStore>(server));
    });
  }
  std::vector<std::unique_ptr<JobLink>> JoinAll(const std::vector<JobLinkOptions>& options) {
    std::vector<std::unique_ptr<JobLink>> links;
    for (const auto& node : options) links.push_back(Link(node));
    for (const auto& link : links) WaitFor([&] { return link->joined(); });
    return links;
  }

  // Of three, with a short patience: a beat comes every second.
  JobLinkOptions OptionsOfThree(int node, int max_restarts, milliseconds join_deadline) const {
    JobLinkOptions options = Options(node, 3);
    options.max_restarts = max_restarts;
    options.silence_limit = milliseconds(2'500);
    options.join_deadline = join_deadline;
    return options;
  }
  std::vector<std::unique_ptr<JobLink>> JoinThree(int max_restarts, milliseconds join_deadline) {
    std::vector<JobLinkOptions> options;
    for (int node = 0; node < 3; ++node)
      options.push_back(OptionsOfThree(node, max_restarts, join_deadline));
    return JoinAll(options);
  }
  // The others hand in their ends once they have noticed; `before` they do.
  static void LoseNode2(
      std::vector<std::unique_ptr<JobLink>>& links, const std::function<void()>& before = [] {}) {
    links[2].reset();
    before();
    WaitFor([&] { return links[0]->told_to_end() && links[1]->told_to_end(); });
    links[0]->ReportEnd(Failed(Blame::kLostPeer, 69, "rank 0 lost a peer"));
    links[1]->ReportEnd(Failed(Blame::kEnded, 143, "rank 1 was ended"));
  }

  // A hang fails the test, through ctest's limit.
  static void WaitFor(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::sleep_for(milliseconds(1));
  }
  static Verdict WaitForVerdict(const JobLink& link) {
    WaitFor([&] { return link.verdict().has_value(); });
    return *link.verdict();
  }
  static NodeEnd Failed(Blame blame, int code, const std::string& what) {
    NodeEnd end;
    end.failure = Failure{blame, code, what, "", ""};
    return end;
  }
  bool Has(const std::string& key) {
    const std::lock_guard lock(server_->mutex);
    return server_->values.contains(key);
  }
  void SetServer(bool Server::*what) {
    const std::lock_guard lock(server_->mutex);
    (*server_).*what = true;
  }

  std::shared_ptr<Server> server_ = std::make_shared<Server>();
};

TEST_F(JobLinkTest, OneFailureEndsAllWithOneVerdict) {
  const auto links = JoinAll({Options(0, 3), Options(1, 3), Options(2, 3)});
  for (const auto& link : links) {
    link->Begin(0);
    EXPECT_FALSE(link->told_to_end());
    EXPECT_FALSE(link->verdict());
  }
  links[1]->ReportFailure();
  for (const auto& link : links) WaitFor([&] { return link->told_to_end(); });
  links[0]->ReportEnd(Failed(Blame::kEnded, 143, "rank 0 was ended"));
  links[2]->ReportEnd(Failed(Blame::kLostPeer, 69, "rank 2 lost a peer"));
  EXPECT_FALSE(links[0]->verdict()) << "node 1 has not ended";
  links[1]->ReportEnd(Failed(Blame::kFailed, 3, "rank 1 failed"));
  for (const auto& link : links) {
    const Verdict verdict = WaitForVerdict(*link);
    EXPECT_EQ(verdict.exit_code, 3);
    EXPECT_EQ(verdict.cause->what, "rank 1 failed");
    EXPECT_FALSE(verdict.restart);
  }
}

TEST_F(JobLinkTest, OthersHearThatTheMainNodeHasEnded) {
  auto first = Options(0, 2);
  auto second = Options(1, 2);
  first.max_restarts = second.max_restarts = 1;
  const auto links = JoinAll({first, second});
  links[1]->Begin(0);
  EXPECT_FALSE(links[1]->main_node_ended());
  links[0]->ReportEnd(Failed(Blame::kFailed, 3, "rank 0 failed"));
  WaitFor([&] { return links[1]->main_node_ended(); });
  links[1]->ReportEnd(NodeEnd());
  EXPECT_TRUE(WaitForVerdict(*links[1]).restart);
  links[1]->Begin(1);
  EXPECT_FALSE(links[1]->main_node_ended()) << "that was the attempt before";
}

TEST_F(JobLinkTest, TheFirstToNoticeIsTheCauseAmongEquals) {
  const auto links = JoinAll({Options(0, 3), Options(1, 3), Options(2, 3)});
  links[2]->ReportFailure();
  WaitFor([&] { return links[0]->told_to_end() && links[1]->told_to_end(); });
  links[0]->ReportFailure();
  for (int node = 0; node < 3; ++node)
    links[static_cast<size_t>(node)]->ReportEnd(Failed(Blame::kFailed, 10 + node, "failed"));
  for (const auto& link : links) EXPECT_EQ(WaitForVerdict(*link).exit_code, 12);
}

TEST_F(JobLinkTest, ARestartIsAgreedOnAndForgetsTheLastAttempt) {
  auto first = Options(0, 2);
  auto second = Options(1, 2);
  first.max_restarts = second.max_restarts = 1;
  const auto links = JoinAll({first, second});
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const auto& link : links) {
      link->Begin(attempt);
      EXPECT_FALSE(link->told_to_end());
      EXPECT_FALSE(link->verdict());
    }
    links[0]->ReportFailure();
    links[0]->ReportEnd(Failed(Blame::kKilled, 137, "rank 0 was killed"));
    WaitFor([&] { return links[1]->told_to_end(); });
    links[1]->ReportEnd(Failed(Blame::kEnded, 143, "rank 1 was ended"));
    for (const auto& link : links) {
      const Verdict verdict = WaitForVerdict(*link);
      EXPECT_EQ(verdict.exit_code, 137);
      EXPECT_EQ(verdict.restart, attempt == 0);
    }
  }
}

TEST_F(JobLinkTest, ALostNodeEndsTheOthersWhereNoRestartIsLeft) {
  auto links = JoinThree(0, milliseconds(600'000));
  LoseNode2(links);
  for (const size_t node : {0, 1}) {
    const Verdict verdict = WaitForVerdict(*links[node]);
    EXPECT_NE(verdict.cause->what.find("node 2 was lost"), std::string::npos)
        << verdict.cause->what;
    EXPECT_EQ(verdict.exit_code, ExitCodeFor(StatusCode::kUnavailable));
    EXPECT_FALSE(verdict.restart);
  }
  links[1]->Leave(milliseconds(60'000));
  links[0]->Leave(milliseconds(60'000));  // does not wait for node 2
}

TEST_F(JobLinkTest, ALostNodesPlaceIsTakenByALauncherStartedThereAgain) {
  auto links = JoinThree(5, milliseconds(600'000));
  // It comes before node 0 has noticed, and waits.
  LoseNode2(links, [&] { links[2] = Link(OptionsOfThree(2, 5, milliseconds(600'000))); });
  for (const size_t node : {0, 1}) {
    const Verdict verdict = WaitForVerdict(*links[node]);
    EXPECT_TRUE(verdict.restart);
    EXPECT_EQ(verdict.awaited, std::vector<int>{2});
    links[node]->Begin(1);
  }
  WaitFor([&] { return links[2]->joined(); });
  EXPECT_EQ(links[2]->first_attempt(), 1);
  links[2]->Begin(1);
  for (const auto& link : links) {
    WaitFor([&] { return link->complete(); });
    EXPECT_TRUE(link->status().ok()) << link->status().message();
    EXPECT_FALSE(link->told_to_end());
  }
  // The next one begins at once.
  links[2]->ReportFailure();
  links[2]->ReportEnd(Failed(Blame::kKilled, 137, "rank 2 was killed"));
  for (const size_t node : {0, 1}) links[node]->ReportEnd(Failed(Blame::kEnded, 143, "ended"));
  for (const auto& link : links) {
    const Verdict verdict = WaitForVerdict(*link);
    EXPECT_TRUE(verdict.restart && verdict.awaited.empty());
    link->Begin(2);
    EXPECT_TRUE(link->complete());
  }
  // Lost once more: again there is a place.
  LoseNode2(links);
  for (const size_t node : {0, 1}) {
    EXPECT_TRUE(WaitForVerdict(*links[node]).restart);
    links[node]->Begin(3);
    EXPECT_FALSE(links[node]->complete());
  }
  links[2] = Link(OptionsOfThree(2, 5, milliseconds(600'000)));
  for (const size_t node : {0, 1}) WaitFor([&] { return links[node]->complete(); });
  WaitFor([&] { return links[2]->joined(); });
  EXPECT_EQ(links[2]->first_attempt(), 3);
  // And it is taken.
  const auto late = Link(OptionsOfThree(2, 5, milliseconds(600'000)));
  WaitFor([&] { return !late->status().ok(); });
  EXPECT_EQ(late->status().code(), StatusCode::kUsage);
}

TEST_F(JobLinkTest, ALostNodeThatDoesNotComeBackIsNamed) {
  auto links = JoinThree(5, milliseconds(4'000));
  LoseNode2(links);
  for (const size_t node : {0, 1}) {
    EXPECT_TRUE(WaitForVerdict(*links[node]).restart);
    links[node]->Begin(1);
  }
  for (const size_t node : {0, 1}) {
    WaitFor([&] { return !links[node]->status().ok(); });
    EXPECT_FALSE(links[node]->complete());
    EXPECT_EQ(links[node]->status().code(), StatusCode::kUnavailable);
    const std::string message = links[node]->status().message();
    for (const char* part : {"node(s) 2 did not come back", "restart 1 of 5", "join_timeout"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Its launcher lives, but was not heard of: stopped for a while, or behind a cable that was pulled.
TEST_F(JobLinkTest, WhoWasGivenUpByMistakeIsToldSo) {
  auto links = JoinThree(5, milliseconds(600'000));
  {
    const std::lock_guard lock(server_->mutex);
    // As node 0 says it, without the wait.
    server_->values["attempt_0/failures"] = "1";
    server_->values["attempt_0/verdict"] = R"({"exit_code": 69, "restart": true, "awaited": [2]})";
  }
  links[2]->ReportEnd(Failed(Blame::kEnded, 143, "rank 2 was ended"));
  WaitFor([&] { return !links[2]->status().ok(); });
  EXPECT_EQ(links[2]->status().code(), StatusCode::kUnavailable);
  EXPECT_NE(links[2]->status().message().find("start keel launch here again"), std::string::npos);
}

TEST_F(JobLinkTest, AStoreThatIsGoneIsNamed) {
  const auto links = JoinAll({Options(0, 2), Options(1, 2)});
  SetServer(&Server::gone);
  WaitFor([&] { return !links[1]->status().ok(); });
  EXPECT_EQ(links[1]->status().code(), StatusCode::kUnavailable);
  const std::string message = links[1]->status().message();
  EXPECT_NE(message.find("10.0.0.1:29500"), std::string::npos) << message;
  EXPECT_NE(message.find("connection reset"), std::string::npos) << message;
}

TEST_F(JobLinkTest, ASilentStoreIsNamedAndHoldsNobodyUp) {
  auto options = Options(1, 2);
  options.silence_limit = milliseconds(50);
  auto links = JoinAll({Options(0, 2), options});
  SetServer(&Server::silent);
  WaitFor([&] { return !links[1]->status().ok(); });
  EXPECT_EQ(links[1]->status().code(), StatusCode::kUnavailable);
  EXPECT_NE(links[1]->status().message().find("10.0.0.1:29500"), std::string::npos);
  links.clear();  // returns
}

TEST_F(JobLinkTest, OtherFlagsAreRefusedOnEveryNode) {
  auto other = Options(2, 3);
  other.agreement = "--nproc-per-node 8";
  const auto first = Link(Options(0, 3));
  const auto second = Link(Options(1, 3));
  const auto third = Link(other);
  for (const JobLink* link : {first.get(), second.get(), third.get()}) {
    WaitFor([&] { return !link->status().ok(); });
    EXPECT_FALSE(link->joined());
    EXPECT_EQ(link->status().code(), StatusCode::kUsage);
    const std::string message = link->status().message();
    for (const char* part : {"node 2", "--nproc-per-node 8", "--nproc-per-node 4"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(JobLinkTest, ASecondLauncherWithOneRankIsRefused) {
  const auto links = JoinAll({Options(0, 2), Options(1, 2)});
  const auto intruder = Link(Options(1, 2));
  WaitFor([&] { return !intruder->status().ok(); });
  EXPECT_EQ(intruder->status().code(), StatusCode::kUsage);
  EXPECT_NE(intruder->status().message().find("--node-rank 1"), std::string::npos);
  EXPECT_TRUE(links[1]->status().ok());
}

TEST_F(JobLinkTest, AMissingNodeIsNamed) {
  auto options = Options(0, 3);
  options.join_deadline = milliseconds(50);
  const auto first = Link(options);
  const auto third = Link(Options(2, 3));
  for (const JobLink* link : {first.get(), third.get()}) {
    WaitFor([&] { return !link->status().ok(); });
    EXPECT_NE(link->status().message().find("node(s) 1 did not join"), std::string::npos)
        << link->status().message();
  }
  EXPECT_EQ(first->status().code(), StatusCode::kUnavailable);
}

TEST_F(JobLinkTest, KeepsTryingToConnectUntilItsDeadline) {
  std::atomic<int> tries = 0;
  const auto connect = [&tries, server = server_](int from) {
    return [&tries, server, from]() -> Result<std::unique_ptr<JobStore>> {
      if (++tries < from) return Status(StatusCode::kUnavailable, "refused");
      return std::unique_ptr<JobStore>(std::make_unique<MemoryStore>(server));
    };
  };
  {
    const JobLink patient(Options(0, 1), connect(3));
    WaitFor([&] { return patient.joined(); });
    EXPECT_EQ(tries, 3);
  }
  auto options = Options(1, 2);
  options.join_deadline = milliseconds(30);
  const JobLink impatient(options, connect(1'000'000));
  WaitFor([&] { return !impatient.status().ok(); });
  EXPECT_EQ(impatient.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(impatient.status().message().find("10.0.0.1:29500"), std::string::npos);
  EXPECT_NE(impatient.status().message().find("refused"), std::string::npos);
}

TEST_F(JobLinkTest, NodeZeroLeavesLast) {
  auto links = JoinAll({Options(0, 3), Options(1, 3), Options(2, 3)});
  auto first = std::async(std::launch::async, [&] {
    links[0]->Leave(milliseconds(600'000));
    const std::lock_guard lock(server_->mutex);
    return server_->values["left"];
  });
  for (const size_t node : {1, 2}) {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(first.wait_for(milliseconds(0)), std::future_status::timeout);
    links[node]->Leave(milliseconds(600'000));
  }
  EXPECT_EQ(first.get(), "2");
}

TEST_F(JobLinkTest, NodeZeroDoesNotWaitForEver) {
  const auto links = JoinAll({Options(0, 2), Options(1, 2)});
  links[0]->Leave(milliseconds(20));
  EXPECT_FALSE(Has("left"));
}

}  // namespace
}  // namespace keel::tools
