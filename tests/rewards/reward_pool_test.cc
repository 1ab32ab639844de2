// Verifiers outside of the process that answer, fail, hang and lie; the pool around them; shaping.

#include "rewards/reward_pool.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "rewards/command_verifier.h"
#include "rewards/http_verifier.h"
#include "rewards/reward_rules.h"
#include "rewards/reward_shaping.h"
#include "rewards/reward_wire.h"
#include "rewards/verifier_factory.h"

namespace keel::rewards {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<RewardSample> Samples(int64_t n) {
  std::vector<RewardSample> samples;
  for (int64_t i = 0; i < n; ++i) {
    samples.push_back({});
    samples.back().id = 100 + i;
    samples.back().response = "r" + std::to_string(i) + "\xFF\n\"";
    samples.back().ground_truth = i;
  }
  return samples;
}

std::string Python() {
  const char* python = std::getenv("KEEL_PYTHON");
  return python != nullptr && access(python, X_OK) == 0 ? python : "python3";
}

// A verifier of which `body` handles the object x of each line.
std::vector<std::string> Program(const std::string& body, const std::string& before = "") {
  return {Python(), "-c",
          "import sys, json, time, os, subprocess\n" + before +
              "\nfor line in sys.stdin:\n    x = json.loads(line)\n    " + body};
}

constexpr const char* kReply =
    "print(json.dumps({'id': x['id'], 'score': x['ground_truth'] * 2, 'acc': 1}), flush=True)";

RequestOptions Quick(int retries = 0, int timeout_ms = 20'000) {
  return {4, milliseconds(timeout_ms), retries};
}

TEST(CommandVerifierTest, ScoresInOrderOverOneProcess) {
  CommandVerifier verifier(Program(kReply), Quick());
  const auto samples = Samples(10);
  for (int round = 0; round < 2; ++round) {
    const auto results = verifier.Verify(samples);
    ASSERT_EQ(results.size(), 10u);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].error, "");
      EXPECT_EQ(results[i].id, samples[i].id);
      EXPECT_EQ(results[i].score, 2.0 * static_cast<double>(i));
      EXPECT_EQ(results[i].extra.at("acc"), 1);
    }
  }
}

TEST(CommandVerifierTest, OutputMayComeBeforeAllInputIsRead) {
  // Larger than what the channel holds: a verifier that only wrote first would wait for ever.
  auto samples = Samples(4);
  for (auto& sample : samples) sample.response = std::string(1 << 20, 'x');
  CommandVerifier verifier(
      Program("print(json.dumps({'id': x['id'], 'score': 1, 'note': 'y' * 300000}), flush=True)"),
      Quick());
  for (const auto& result : verifier.Verify(samples)) EXPECT_EQ(result.error, "");
}

TEST(CommandVerifierTest, AHangingProgramIsKilledWithItsChildren) {
  const std::string file = ::testing::TempDir() + "keel_reward_child_" + std::to_string(getpid());
  CommandVerifier verifier({"/bin/sh", "-c", "sleep 1000 & echo $! >" + file + "; sleep 1000"},
                           Quick(0, 1000));
  const auto results = verifier.Verify(Samples(2));
  for (const auto& result : results) EXPECT_THAT(result.error, HasSubstr("reward.timeout_seconds"));
  EXPECT_EQ(verifier.process(), -1);
  pid_t child = 0;
  std::ifstream(file) >> child;
  ASSERT_GT(child, 0);
  // Killed; until somebody reaps it, it is a zombie without a command line.
  for (int i = 0; i < 200 && kill(child, 0) == 0; ++i) {
    std::ifstream line("/proc/" + std::to_string(child) + "/cmdline");
    if (line.get() == EOF) break;
    std::this_thread::sleep_for(milliseconds(10));
  }
  std::ifstream line("/proc/" + std::to_string(child) + "/cmdline");
  EXPECT_EQ(line.get(), EOF) << "the grandchild lives on";
  unlink(file.c_str());
}

TEST(CommandVerifierTest, ErrorsAreNoScores) {
  const auto errors = [](const std::vector<std::string>& command, int retries = 0) {
    CommandVerifier verifier(command, Quick(retries));
    std::string all;
    for (const auto& result : verifier.Verify(Samples(3))) {
      EXPECT_EQ(result.score, 0);
      all += result.error + "|";
    }
    return all;
  };
  EXPECT_THAT(errors({"/no/such/program"}), HasSubstr("/no/such/program"));
  EXPECT_THAT(errors({Python(), "-c", "pass"}), HasSubstr("3 of 3 results missing"));
  EXPECT_THAT(errors(Program("print('hello', flush=True)")), HasSubstr("'hello'"));
  EXPECT_THAT(errors(Program("print('{\"id\": 5, \"score\": 1}', flush=True)")),
              HasSubstr("id 5, which was not asked for"));
  EXPECT_THAT(errors(Program("print('{\"id\": %d}' % x['id'], flush=True)")), HasSubstr("score"));
  EXPECT_THAT(errors(Program("print('z' * 3000000, flush=True); time.sleep(1000)")),
              HasSubstr("a line of more than"));
  EXPECT_THAT(errors(Program("print('{\"id\": %d, \"score\": NaN}' % x['id'], flush=True)")),
              HasSubstr("NaN"));
  EXPECT_THAT(errors(Program("print(json.dumps({'id': x['id'], 'error': '\\x1b' * 50000}), "
                             "flush=True)")),
              testing::AllOf(HasSubstr("\\x1b"), testing::SizeIs(testing::Lt(4000u))));
  // An error of a single sample stands; the others keep their scores.
  CommandVerifier partly(Program("print(json.dumps({'id': x['id'], 'error': 'odd'} if "
                                 "x['ground_truth'] == 1 else {'id': x['id'], 'score': 1}), "
                                 "flush=True)"),
                         Quick());
  const auto results = partly.Verify(Samples(3));
  EXPECT_EQ(results[0].score, 1);
  EXPECT_EQ(results[1].error, "odd");
  EXPECT_EQ(results[2].score, 1);
}

TEST(CommandVerifierTest, ARetryAsksForWhatIsMissing) {
  // Ends after each batch of four: the second one's first try meets a closed channel.
  const std::string body =
      std::string("print(json.dumps({'id': x['id'], 'score': 1}), flush=True)") +
      "\n    n += 1\n    if n == 4: sys.exit(0)";
  CommandVerifier fails(Program("sys.exit(1)"), Quick(2));
  EXPECT_THAT(fails.Verify(Samples(1))[0].error, HasSubstr("(3 tries)"));
  CommandVerifier works(Program(body, "n = 0"), Quick(1));
  for (const auto& result : works.Verify(Samples(8))) EXPECT_EQ(result.error, "");
}

TEST(CommandVerifierTest, AProgramThatCannotBeStartedIsRefusedBeforeAnySample) {
  const std::string file = ::testing::TempDir() + "keel_not_executable_" + std::to_string(getpid());
  std::ofstream(file) << "print(1)\n";
  for (const std::string& program : {std::string("/no/such/program"), file, std::string("/tmp")}) {
    CommandVerifier verifier({program, "x"}, Quick());
    const Status started = verifier.Start();
    EXPECT_EQ(started.code(), StatusCode::kConfig) << program;
    EXPECT_THAT(started.message(), HasSubstr(program));
    EXPECT_THAT(started.message(), HasSubstr("correct reward.command"));
    EXPECT_EQ(verifier.process(), -1);
  }
  unlink(file.c_str());
  // One that starts is the one that is asked.
  CommandVerifier verifier(Program(kReply), Quick());
  ASSERT_TRUE(verifier.Start().ok());
  const pid_t process = verifier.process();
  EXPECT_GT(process, 0);
  EXPECT_EQ(verifier.Verify(Samples(1))[0].error, "");
  EXPECT_EQ(verifier.process(), process);
}

TEST(CommandVerifierTest, AProgramThatEndedWhileIdleHasFailedAtNothing) {
  // Answers one line, and ends.
  const std::string body = std::string(kReply) + "\n    sys.exit(0)";
  CommandVerifier verifier(Program(body), Quick());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(verifier.Verify(Samples(1))[0].error, "");
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(verifier.process()), &info, WEXITED | WNOWAIT), 0);
  }
}

// Answers each connection with the bytes that `answer` makes of the request; "" hangs up.
class Server {
 public:
  explicit Server(std::function<std::string(const std::string&)> answer) : answer_(answer) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_, 8);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  HttpAddress address() const { return {"127.0.0.1", std::to_string(port_), "/verify"}; }
  int requests() const { return requests_; }

 private:
  void Serve() {
    while (true) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      ++requests_;
      std::string request;
      char buffer[4096];
      size_t whole = std::string::npos;
      while (request.size() < whole) {
        const ssize_t got = recv(connection, buffer, sizeof buffer, 0);
        if (got <= 0) break;
        request.append(buffer, static_cast<size_t>(got));
        const size_t head = request.find("\r\n\r\n");
        const size_t length = request.find("Content-Length: ");
        if (head != std::string::npos && length != std::string::npos)
          whole = head + 4 + std::stoul(request.substr(length + 16));
      }
      const std::string text = answer_(request);
      if (send(connection, text.data(), text.size(), MSG_NOSIGNAL) < 0) ADD_FAILURE();
      close(connection);
    }
  }
  std::function<std::string(const std::string&)> answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> requests_{0};
  std::thread thread_;
};

std::string Answer(const std::string& request) {
  const Json body = Json::parse(request.substr(request.find("\r\n\r\n") + 4));
  Json results = Json::array();
  for (const Json& sample : body["samples"])
    results.push_back({{"id", sample["id"]}, {"score", sample["ground_truth"]}});
  return Json({{"results", results}}).dump();
}

std::string Ok(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(HttpVerifierTest, ScoresHoweverTheBodyIsFramed) {
  using Frame = std::function<std::string(const std::string&)>;
  for (const Frame& frame : std::vector<Frame>{
           Ok, [](const std::string& body) { return "HTTP/1.0 200 OK\r\n\r\n" + body; },
           [](const std::string& body) {
             return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: "
                    "Chunked\r\n\r\n3;x=y\r\n" +
                    body.substr(0, 3) + "\r\n" + fmt::format("{:x}", body.size() - 3) + "\r\n" +
                    body.substr(3) + "\r\n0\r\n\r\n";
           }}) {
    const Server server([&](const std::string& request) {
      EXPECT_EQ(request.rfind("POST /verify HTTP/1.1\r\n", 0), 0u);
      return frame(Answer(request));
    });
    HttpVerifier verifier(server.address(), Quick());
    const auto results = verifier.Verify(Samples(6));
    EXPECT_EQ(server.requests(), 2);  // batches of 4
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].error, "");
      EXPECT_EQ(results[i].score, static_cast<double>(i));
    }
  }
}

TEST(HttpVerifierTest, ErrorsAreNoScores) {
  const auto error = [](const std::function<std::string(const std::string&)>& answer, int timeout) {
    const Server server(answer);
    HttpVerifier verifier(server.address(), Quick(0, timeout));
    return verifier.Verify(Samples(1))[0].error;
  };
  EXPECT_THAT(
      error([](auto&) { return "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate"; }, 9000),
      HasSubstr("status 503: late"));
  EXPECT_THAT(error([](auto&) { return "SSH-2.0-x\r\n\r\n"; }, 9000), HasSubstr("not HTTP"));
  EXPECT_THAT(error([](auto&) { return ""; }, 9000), HasSubstr("ended before"));
  EXPECT_THAT(error([](auto&) { return "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"; }, 9000),
              HasSubstr("within the answer"));
  EXPECT_THAT(error([](auto&) { return Ok("{}"); }, 9000), HasSubstr("expected {\"results\""));
  EXPECT_THAT(error([](auto&) { return Ok("{\"results\": [{\"id\": 1e999}]}"); }, 9000),
              HasSubstr("reward.url's answer"));
  EXPECT_THAT(error([](auto&) { return Ok("{\"results\": []}"); }, 9000), HasSubstr("no result"));
  const auto of_others = [](const char* more) {
    return [more](const std::string& request) {
      const std::string mine = Answer(request);
      return Ok(mine.substr(0, mine.size() - 2) + more + "]}");
    };
  };
  EXPECT_EQ(error(of_others(""), 9000), "");
  EXPECT_THAT(error(of_others(",{\"id\":0,\"score\":5}"), 9000), HasSubstr("id 0, which was not"));
  EXPECT_THAT(error(of_others(",{\"id\":99,\"score\":5}"), 9000),
              HasSubstr("id 99, which was not"));
  EXPECT_THAT(error(
                  [](auto&) {
                    std::this_thread::sleep_for(milliseconds(600));
                    return "HTTP/1.1 200 OK\r\n\r\n";
                  },
                  200),
              HasSubstr("reward.timeout_seconds"));
  HttpVerifier nobody({"127.0.0.1", "1", "/"}, Quick());
  EXPECT_EQ(nobody.Start().code(), StatusCode::kConfig);
  EXPECT_THAT(nobody.Start().message(), HasSubstr("http://127.0.0.1:1/"));
  EXPECT_THAT(nobody.Start().message(), HasSubstr("start the service"));
  const Server somebody([](auto&) { return ""; });
  EXPECT_TRUE(HttpVerifier(somebody.address(), Quick()).Start().ok());
  EXPECT_THAT(nobody.Verify(Samples(1))[0].error, HasSubstr("127.0.0.1:1"));
}

TEST(HttpVerifierTest, RetriesAFailedRequest) {
  int calls = 0;
  const Server server([&](const std::string& request) {
    return ++calls == 1 ? std::string("HTTP/1.1 500 No\r\n\r\n") : Ok(Answer(request));
  });
  HttpVerifier verifier(server.address(), Quick(1));
  EXPECT_EQ(verifier.Verify(Samples(2))[1].score, 1);
}

TEST(HttpVerifierTest, Addresses) {
  const auto address = ParseHttpAddress("http://[::1]:8080/a/b?c");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "::1");
  EXPECT_EQ(address->port, "8080");
  EXPECT_EQ(address->path, "/a/b?c");
  EXPECT_EQ(ParseHttpAddress("http://host")->port, "80");
  for (const char* bad :
       {"", "https://host", "http://", "http://h:", "http://h:0", "http://h:70000", "http://h:8x",
        "http://[::1", "http://a b/", "http://h/\r\nX: y"})
    EXPECT_FALSE(ParseHttpAddress(bad).ok()) << bad;
}

TEST(RewardPoolTest, CollectsInTheOrderOfSubmission) {
  RuleOptions options;
  options.type = RewardType::kArithmetic;
  RewardPool pool(3, 4, [&] { return ValueOrThrow(MakeRuleVerifier(options)); });
  for (int round = 0; round < 3; ++round) {
    for (auto& sample : Samples(50)) {
      sample.response = std::to_string(sample.id - 100);
      if (sample.id % 10 == 3) sample.ground_truth = nullptr;
      pool.Submit(std::move(sample));
    }
    const auto results = pool.Collect(std::chrono::seconds(60));
    ASSERT_EQ(results.size(), 50u);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].id, static_cast<int64_t>(100 + i));
      EXPECT_EQ(results[i].ok(), results[i].id % 10 != 3);
      EXPECT_EQ(results[i].score, results[i].ok() ? 1 : 0);
    }
  }
  EXPECT_EQ(pool.stats().errors, 15);
  EXPECT_EQ(pool.stats().verified, 135);
  EXPECT_TRUE(pool.Collect(milliseconds(0)).empty());
}

// Waits until it is let go.
class SlowVerifier : public Verifier {
 public:
  explicit SlowVerifier(std::atomic<bool>& go) : go_(go) {}
  std::vector<RewardResult> Verify(std::span<const RewardSample> samples) override {
    while (!go_) std::this_thread::sleep_for(milliseconds(1));
    if (samples[0].response == "throw") throw std::runtime_error("out of luck");
    auto results = AllFailed(samples, "");
    for (auto& result : results) result.score = 5;
    return results;
  }

 private:
  std::atomic<bool>& go_;
};

TEST(RewardPoolTest, WhatComesTooLateIsAnErrorAndNotTheNextRoundsScore) {
  std::atomic<bool> go{false};
  RewardPool pool(1, 1, [&] { return std::make_unique<SlowVerifier>(go); });
  for (auto& sample : Samples(3)) pool.Submit(std::move(sample));
  for (const auto& result : pool.Collect(milliseconds(30)))
    EXPECT_THAT(result.error, HasSubstr("no result within 0.03 s"));
  EXPECT_EQ(pool.stats().errors, 3);
  go = true;
  auto samples = Samples(2);
  samples[1].response = "throw";
  for (auto& sample : samples) pool.Submit(std::move(sample));
  const auto results = pool.Collect(std::chrono::seconds(60));
  EXPECT_EQ(results[0].score, 5);
  EXPECT_EQ(results[1].error, "out of luck");
}

TEST(RewardPoolTest, MadeFromTheConfiguration) {
  RewardSection reward;
  reward.type = RewardType::kCommand;
  EXPECT_FALSE(MakeVerifierFactory(reward).ok());
  reward.command = Program(kReply);
  RewardPool pool(2, 4, ValueOrThrow(MakeVerifierFactory(reward)));
  for (auto& sample : Samples(9)) pool.Submit(std::move(sample));
  EXPECT_EQ(pool.Collect(CollectLimit(reward, 9))[8].score, 16);
  reward.command = {"/no/such/program"};
  EXPECT_THAT(RewardPool(2, 4, ValueOrThrow(MakeVerifierFactory(reward))).Start().message(),
              HasSubstr("/no/such/program"));
  reward.type = RewardType::kHttp;
  reward.url = "ftp://x";
  EXPECT_FALSE(MakeVerifierFactory(reward).ok());
  reward = {};
  reward.format_pattern = "[";
  EXPECT_FALSE(MakeVerifierFactory(reward).ok());
}

TEST(RewardShapingTest, OverlongPenalty) {
  EXPECT_EQ(OverlongPenalty(80, 100, 20, 1), 0);
  EXPECT_EQ(OverlongPenalty(90, 100, 20, 1), -0.5);
  EXPECT_EQ(OverlongPenalty(100, 100, 20, 2), -2);
  EXPECT_EQ(OverlongPenalty(100, 100, 0, 2), 0);
}

TEST(RewardShapingTest, GroupsThatTeachNothingGo) {
  const std::vector<int64_t> groups = {4, 4, 9, 9, 1, 4, 7, 7};
  const std::vector<double> metric = {1, 1, 0, 1, 0, 1, 1, 0};
  EXPECT_THAT(KeepInformativeGroups(groups, metric, {}), ElementsAre(0, 0, 1, 1, 1, 0, 1, 1));
  const std::vector<uint8_t> counted = {1, 1, 1, 1, 0, 1, 1, 0};
  EXPECT_THAT(KeepInformativeGroups(groups, metric, counted), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_EQ(DecideSampling(8, 8, 3, 2), SamplingDecision::kEnough);
  EXPECT_EQ(DecideSampling(7, 8, 1, 2), SamplingDecision::kGenerate);
  EXPECT_EQ(DecideSampling(7, 8, 2, 2), SamplingDecision::kGiveUp);
  EXPECT_EQ(DecideSampling(0, 8, 1000, 0), SamplingDecision::kGenerate);
}

}  // namespace
}  // namespace keel::rewards
