// Verifiers outside of the process that answer, fail, hang and lie; the pool around them; shaping.

#include "rewards/reward_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "rewards/command_verifier.h"
#include "rewards/reward_rules.h"
#include "rewards/reward_shaping.h"
#include "rewards/reward_wire.h"
#include "rewards/verifier_factory.h"
#include "rewards/weighted_verifier.h"
#include "tests/rewards/samples.h"

namespace keel::rewards {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A verifier of which `body` handles the object x of each line.
std::vector<std::string> Program(const std::string& body, const std::string& before = "") {
  return {Python(), "-c",
          "import sys, json, time, os, subprocess\n" + before +
              "\nfor line in sys.stdin:\n    x = json.loads(line)\n    " + body};
}

constexpr const char* kReply =
    "print(json.dumps({'id': x['id'], 'score': x['ground_truth'] * 2, 'acc': 1}), flush=True)";

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

// They were left out: of "acc" alone `keel eval` hears that a response with a low score is right.
TEST(CommandVerifierTest, TrueAndFalseAreNumbersAsInPython) {
  CommandVerifier verifier(
      Program("print(json.dumps({'id': x['id'], 'score': 0.5, 'acc': True, 'short': False, "
              "'note': 'fine'}), flush=True)"),
      Quick());
  const auto results = verifier.Verify(Samples(1));
  ASSERT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].extra, (std::map<std::string, double>{{"acc", 1}, {"short", 0}}));
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
  EXPECT_THAT(errors(Program("print('z' * 9000000, flush=True); time.sleep(1000)")),
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

// What a program said before it failed stands: one sample that it cannot take costs itself alone.
TEST(CommandVerifierTest, ResultsOfARequestThatFailedStand) {
  const std::string reply = "print(json.dumps({'id': x['id'], 'score': 1}), flush=True)";
  const std::string death = "if x['ground_truth'] == 2: os.abort()\n    ";
  CommandVerifier dies(Program(death + reply), Quick(1));
  const auto results = dies.Verify(Samples(4));
  for (const size_t i : {0, 1}) EXPECT_EQ(results[i].score, 1) << results[i].error;
  for (const size_t i : {2, 3}) EXPECT_THAT(results[i].error, HasSubstr("(2 tries)"));
  // Nor are they asked for again: with as many tries as it takes all have one.
  CommandVerifier two(Program("n += 1\n    if n == 3: os.abort()\n    " + reply, "n = 0"),
                      Quick(3));
  for (const auto& result : two.Verify(Samples(8))) EXPECT_EQ(result.error, "");
  // But of a program that says two scores of one sample none counts: which is meant?
  CommandVerifier twice(Program(reply + "; " + reply), Quick(2));
  for (const auto& result : twice.Verify(Samples(4)))
    EXPECT_THAT(result.error, HasSubstr("which was not asked for"));
  // Neither does a line of nonsense take back what stands before it.
  CommandVerifier lies(
      Program(reply + "\n    if x['ground_truth'] == 1: print('what', flush=True)"), Quick(0));
  const auto said = lies.Verify(Samples(3));
  EXPECT_EQ(said[0].score, 1) << said[0].error;
  EXPECT_EQ(said[1].score, 1) << said[1].error;
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

// Nothing of it may control a terminal, pass for a line of our own, or fill a disk.
TEST(CommandVerifierTest, ItsErrorOutputIsMadePrintableAndCut) {
  const std::string body =
      "[sys.stderr.write(text) for text in ('\\x1b[31mred\\n', 'y' * 100000 + '\\n', 'half')];"
      "sys.stderr.flush(); sys.exit(1)";
  ::testing::internal::CaptureStderr();
  {
    CommandVerifier verifier(Program(body), Quick());
    EXPECT_NE(verifier.Verify(Samples(1))[0].error, "");
  }
  std::istringstream said(::testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(said, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  const std::string begin = "reward.command " + Python() + ": ";
  EXPECT_EQ(lines[0], begin + "\\x1b[31mred");
  EXPECT_EQ(lines[1], begin + std::string(LineRelay::kLongestLine, 'y') + "...");
  EXPECT_EQ(lines[2], begin + "half");
}

TEST(CommandVerifierTest, OfErrorOutputWithoutAnEndTheBeginningIsShown) {
  ::testing::internal::CaptureStderr();
  {
    CommandVerifier verifier({"/bin/sh", "-c", "yes error >&2"}, Quick(0, 500));
    EXPECT_NE(verifier.Verify(Samples(1))[0].error, "");
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(said.size(), LineRelay::kMostBytes + 1000);
  EXPECT_NE(said.find("no more of its error output is shown\n"), std::string::npos);
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

// Of each kind of program, alone and as a part of several; the test would outlast its own limit.
TEST(RewardPoolTest, ItsEndDoesNotWaitForAVerifierThatHangs) {
  const std::string file = ::testing::TempDir() + "reward_pool_hangs_" + std::to_string(getpid());
  const RequestOptions patient{.timeout = std::chrono::hours(1), .max_retries = 3};
  const auto command = [&] {
    return std::make_unique<CommandVerifier>(
        Program("open('" + file + "', 'w').close(); time.sleep(3600)"), patient);
  };
  const auto weighted = [&]() -> std::unique_ptr<Verifier> {
    std::vector<WeightedVerifier::Part> parts;
    parts.push_back({"a", 1, command()});
    return std::make_unique<WeightedVerifier>(std::move(parts));
  };
  for (const RewardPool::Factory& make :
       {RewardPool::Factory(command), RewardPool::Factory(weighted)}) {
    RewardPool pool(2, 1, make);
    for (auto& sample : Samples(5)) pool.Submit(std::move(sample));
    while (!std::filesystem::exists(file)) std::this_thread::sleep_for(milliseconds(10));
    std::filesystem::remove(file);
  }
}

TEST(RewardPoolTest, PollReturnsEachOnceAndWhatIsTooLateAsAnError) {
  std::atomic<bool> go{false};
  RewardPool pool(1, 1, [&] { return std::make_unique<SlowVerifier>(go); });
  for (auto& sample : Samples(3)) pool.Submit(std::move(sample), milliseconds(10));
  for (auto& sample : Samples(1)) pool.Submit(std::move(sample), std::chrono::seconds(60));
  std::this_thread::sleep_for(milliseconds(20));
  const auto late = pool.Poll();
  ASSERT_EQ(late.size(), 3u);
  for (const auto& result : late) EXPECT_THAT(result.error, HasSubstr("no result within 0.01 s"));
  go = true;
  for (auto& sample : Samples(2)) pool.Submit(std::move(sample));
  std::vector<RewardResult> results;
  while (results.size() < 3) {
    for (auto& result : pool.Poll()) results.push_back(std::move(result));
  }
  for (const RewardResult& result : results) EXPECT_EQ(result.score, 5);
  EXPECT_TRUE(pool.Poll().empty());
  EXPECT_EQ(pool.stats().errors, 3);
  EXPECT_EQ(pool.stats().verified, 3);
}

// A program that dies with the thread that started it must not be started by one that ends.
TEST(RewardPoolTest, EachProgramIsStartedOnce) {
  const std::string file = ::testing::TempDir() + "started_" + std::to_string(getpid());
  const std::string note = "open('" + file + "', 'a').write('x')";
  RewardPool pool(
      3, 1, [&] { return std::make_unique<CommandVerifier>(Program(kReply, note), Quick()); });
  ThrowIfError(pool.Start());
  const auto starts = [&] {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  };
  while (starts().size() < 3) std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(milliseconds(200));  // for those that would die
  for (const RewardSample& sample : Samples(30)) pool.Submit(sample);
  for (const RewardResult& result : pool.Collect(milliseconds(20'000))) EXPECT_EQ(result.error, "");
  EXPECT_EQ(starts(), "xxx");
  std::remove(file.c_str());
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

// Under a limit of the address space there is room for some stacks.
TEST(RewardPoolTest, AThreadThatCannotBeMadeIsAnErrorAndNoCrash) {
  const auto make = [] {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{200} << 20);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
    try {
      std::atomic<bool> go{true};
      RewardPool pool(100, 1, [&] { return std::make_unique<SlowVerifier>(go); });
    } catch (const Error& error) {
      std::fprintf(stderr, "%s", error.what());
      std::exit(error.status().code() == StatusCode::kExhausted ? 0 : 3);
    }
    std::exit(4);
  };
  EXPECT_EXIT(make(), ::testing::ExitedWithCode(0),
              "no thread for verifier .* of 100: .*reward.num_workers");
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
  EXPECT_THAT(KeepInformativeGroups(groups, metric, counted), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0));
  EXPECT_EQ(DecideSampling(8, 8, 3, 2), SamplingDecision::kEnough);
  EXPECT_EQ(DecideSampling(7, 8, 1, 2), SamplingDecision::kGenerate);
  EXPECT_EQ(DecideSampling(7, 8, 2, 2), SamplingDecision::kGiveUp);
  EXPECT_EQ(DecideSampling(0, 8, 1000, 0), SamplingDecision::kGenerate);
}

}  // namespace
}  // namespace keel::rewards
