// Reward functions of Python files that score, print, fork, hang and die.

#include "rewards/python_verifier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "rewards/reward_pool.h"
#include "rewards/verifier_factory.h"
#include "tests/rewards/samples.h"

namespace keel::rewards {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PythonVerifierTest : public ::testing::Test {
 protected:
  PythonVerifierTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("keel_python_reward_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~PythonVerifierTest() override { std::filesystem::remove_all(folder_); }

  PythonFunction File(const std::string& text) {
    PythonFunction function;
    function.python = Python();
    function.path = folder_ / fmt::format("reward{}.py", files_++);
    std::ofstream(function.path) << text;
    return function;
  }
  // A function with this body.
  PythonFunction Body(const std::string& body, const std::string& before = "import os, sys, time") {
    return File(
        before +
        "\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    " +
        body + "\n");
  }
  static std::vector<RewardResult> Score(const PythonFunction& function, int64_t count = 1,
                                         const RequestOptions& options = Quick()) {
    PythonVerifier verifier(function, options);
    return verifier.Verify(Samples(count));
  }
  // The errors of three samples, of which the second one is given to `body` alone.
  void OnlyTheSecondFails(const std::string& body, const std::string& error,
                          const RequestOptions& options = Quick()) {
    SCOPED_TRACE(body);
    PythonVerifier verifier(Body("if ground_truth == 1:\n        " + body + "\n    return 0.5"),
                            options);
    const auto results = verifier.Verify(Samples(3));
    EXPECT_EQ(results[0].error, "");
    EXPECT_THAT(results[1].error, HasSubstr(error));
    EXPECT_EQ(results[1].score, 0);
    EXPECT_EQ(results[2].error, "");
    EXPECT_EQ(results[2].score, 0.5);
  }
  std::string Refused(const PythonFunction& function) {
    PythonVerifier verifier(function, Quick());
    const Status started = verifier.Start();
    EXPECT_EQ(started.code(), StatusCode::kConfig) << started.message();
    EXPECT_EQ(verifier.process(), -1);
    return started.message();
  }

  std::filesystem::path folder_;
  int files_ = 0;
};

TEST_F(PythonVerifierTest, ScoresAsThePythonFunctionDoesWhenItIsCalledInPython) {
  const PythonFunction function = File(R"PY(
import re

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
    right = bool(found) and found[-1].replace(",", "") == ground_truth
    return {"score": (1.0 if right else 0.1 * bool(found)) + bonus + extra_info["index"] / 7,
            "acc": right, "pred": found[-1] if found else None, "source": data_source}
)PY");
  const std::vector<std::string> responses = {"so #### 42",       "#### 7 or #### 1,234", "no", "",
                                              "#### 41 \xFF\xF0", "\u00e9 \u4f60 #### 42"};
  std::vector<RewardSample> samples;
  Json all = Json::array();
  for (size_t i = 0; i < responses.size(); ++i) {
    RewardSample sample;
    sample.id = static_cast<int64_t>(i) + 5;
    sample.data_source = "gsm8k";
    sample.response = responses[i];
    sample.ground_truth = i == 1 ? "1234" : "42";
    sample.extra_info = {{"index", i}};
    all.push_back({responses[i], sample.ground_truth, i});
    samples.push_back(sample);
  }
  // The oracle: the interpreter alone.
  std::ofstream(folder_ / "asked.json") << all.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::ofstream(folder_ / "direct.py") << R"PY(
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("m", sys.argv[1])
m = importlib.util.module_from_spec(spec)
spec.loader.exec_module(m)
print(json.dumps([m.compute_score("gsm8k", text, truth, {"index": i}, bonus=0.25)
                  for text, truth, i in json.load(open(sys.argv[2]))]))
)PY";
  const std::string out = folder_ / "direct.json";
  ASSERT_EQ(std::system(fmt::format("{} {} {} {} > {}", Python(), (folder_ / "direct.py").string(),
                                    function.path, (folder_ / "asked.json").string(), out)
                            .c_str()),
            0);
  std::ifstream in(out);
  const Json direct = Json::parse(in);

  PythonFunction with = function;
  with.kwargs = {{"bonus", 0.25}};
  PythonVerifier verifier(with, Quick());
  ASSERT_TRUE(verifier.Start().ok());
  const pid_t process = verifier.process();
  const auto results = verifier.Verify(samples);
  EXPECT_EQ(verifier.process(), process) << "one child scores all";
  ASSERT_EQ(direct.size(), results.size());
  std::set<double> scores;
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].error, "");
    EXPECT_EQ(results[i].id, samples[i].id);
    EXPECT_EQ(results[i].score, direct[i]["score"].get<double>());
    EXPECT_EQ(results[i].extra.at("acc"), direct[i]["acc"].get<bool>() ? 1 : 0);
    EXPECT_EQ(results[i].answer,
              direct[i]["pred"].is_null() ? "" : direct[i]["pred"].get<std::string>());
    EXPECT_FALSE(results[i].extra.contains("source"));
    scores.insert(results[i].score);
  }
  EXPECT_EQ(scores.size(), results.size());
}

TEST_F(PythonVerifierTest, WhatAScoreMayBe) {
  // Expressions, and a part of the score or error that each is.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1", "=1"},
      {"True", "=1"},
      {"numpy.float32(0.5)", "=0.5"},
      {"numpy.array(0.25)", "=0.25"},
      {"numpy.int64(3)", "=3"},
      {"{'score': numpy.float64(2), 'n': math.nan}", "=2"},
      {"None", "expected a number, got NoneType"},
      {"'1.0'", "expected a number, got str"},
      {"[1]", "expected a number, got list"},
      {"numpy.zeros(2)", "expected a number, got ndarray"},
      {"{'score': None}", "score: expected a number, got NoneType"},
      {"{'score': '1'}", "score: expected a number, got str"},
      {"{'reward': 1}", "no score"},
      {"math.nan", "not finite: nan"},
      {"-math.inf", "not finite: -inf"},
      {"numpy.float32('nan')", "not finite"},
      {"{'score': math.inf}", "score is not finite: inf"},
      {"{'score': 1.0, 'acc': math.nan}", "acc is not finite: nan"},
      {"10 ** 400", "is greater than a double holds"},
      {"{'score': 0.5, 'big': 10 ** 400}", "=0.5"},
      {"{'score': 0.5, 'pred': 10 ** 6000}", "=0.5"},
      {"{'score': 0.5, 'answer': -(10 ** 6000)}", "=0.5"},
      {"{'score': 0.5, 'pred': chr(0xd800), chr(0xdfff): 1}", "=0.5"},
      {"int(chr(0xd83d))", "ValueError: invalid literal"},
  };
  auto samples = Samples(std::ssize(cases));
  for (size_t i = 0; i < cases.size(); ++i) samples[i].ground_truth = cases[i].first;
  PythonVerifier verifier(Body("return eval(ground_truth)", "import numpy, math"), Quick());
  const auto results = verifier.Verify(samples);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string found =
        results[i].ok() ? fmt::format("={}", results[i].score) : results[i].error;
    EXPECT_THAT(found, HasSubstr(cases[i].second)) << cases[i].first;
    // Lines of Keel's own program say nothing to anybody.
    const bool of_keel = found.find("expected a number") != std::string::npos;
    EXPECT_FALSE(of_keel && found.find("<string>") != std::string::npos) << found;
  }
  // A plain number is its own accuracy, as in verl.
  const auto plain = Score(Body("return 0.75"))[0];
  EXPECT_EQ(plain.extra, (std::map<std::string, double>{{"acc", 0.75}}));
}

TEST_F(PythonVerifierTest, AnAsyncFunctionIsAwaitedOnOneLoop) {
  const auto results = Score(File(R"PY(
import asyncio
loops = []

async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    loops.append(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return {"score": ground_truth, "loops": len(set(map(id, loops)))}
)PY"),
                             5);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].error, "");
    EXPECT_EQ(results[i].score, static_cast<double>(i));
    EXPECT_EQ(results[i].extra.at("loops"), 1);
  }
}

TEST_F(PythonVerifierTest, AnExceptionIsTheSamplesErrorAndNoOthers) {
  OnlyTheSecondFails("raise ValueError('odd \\x1b[31m')",
                     "ValueError: odd \\x1b[31m (reward0.py:4)");
  OnlyTheSecondFails("return undefined_name", "NameError");
  OnlyTheSecondFails("sys.exit(3)", "SystemExit: 3");
  OnlyTheSecondFails("return compute_score(data_source, solution_str, ground_truth)",
                     "RecursionError");
  OnlyTheSecondFails("raise Exception('x' * 5000000)", "Exception: xxx");
}

TEST_F(PythonVerifierTest, ADeadChildIsTheSamplesErrorAndIsStartedAgain) {
  OnlyTheSecondFails(
      "os._exit(0)",
      "ended with exit code 0 (its error output says why) with 1 of 1 results missing");
  OnlyTheSecondFails("os.kill(os.getpid(), 9)", "was killed by signal 9 (Killed) with 1 of");
  OnlyTheSecondFails("os.kill(0, 9)", "was killed by signal 9");  // its whole group
  OnlyTheSecondFails("os.abort()", "was killed by signal 6");
  OnlyTheSecondFails("os.closerange(0, 1000)", "ended with");
  // It has "closed its output", or has "ended", if its reader of requests was not in a read.
  OnlyTheSecondFails("os.closerange(0, 1000); time.sleep(600)",
                     "(its error output says why) with 1 of 1 results missing");
}

TEST_F(PythonVerifierTest, ACallThatHangsIsKilledAtItsLimit) {
  const RequestOptions quick = Quick(0, 500);
  OnlyTheSecondFails("time.sleep(600)", "reward.timeout_seconds", quick);
  OnlyTheSecondFails("import signal; signal.signal(15, signal.SIG_IGN); time.sleep(600)",
                     "reward.timeout_seconds", quick);
  OnlyTheSecondFails("exec('while True: pass')", "reward.timeout_seconds", quick);
}

TEST_F(PythonVerifierTest, AFailureIsTriedAgainAsOftenAsIsSaid) {
  const std::string mark = folder_ / "mark";
  const auto results = Score(Body("if not os.path.exists('" + mark + "'):\n        open('" + mark +
                                  "', 'w').close()\n        os._exit(1)\n    return 1"),
                             1, Quick(1));
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].score, 1);
}

TEST_F(PythonVerifierTest, WhatItPrintsIsNoPartOfTheProtocol) {
  ::testing::internal::CaptureStderr();
  const auto results =
      Score(Body("print('{\"id\": 100, \"score\": 9}')\n    os.write(1, b'raw\\n')\n    "
                 "sys.__stdout__.write('more\\n')\n    os.system('echo shell')\n    "
                 "assert sys.stdin.read() == ''\n    return 0.25"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].score, 0.25);
  for (const char* text : {"{\"id\": 100, \"score\": 9}", ": raw\n", ": more\n", ": shell\n"})
    EXPECT_THAT(said, HasSubstr(text));
  // A file that prints without end is drained, shown in part, and holds nothing up.
  ::testing::internal::CaptureStderr();
  const auto loud = Score(Body("print('y' * 8000000)\n    return 1"), 2);
  const std::string much = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(loud[1].error, "");
  EXPECT_LT(much.size(), size_t{2} << 20);
}

TEST_F(PythonVerifierTest, AForkAnswersNothingAndKeepsNothingOpen) {
  // Both come back from the function: one of them is no child of ours.
  for (const auto& result : Score(Body("os.fork()\n    return ground_truth + 1"), 4)) {
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.score, static_cast<double>(result.id - 99));
  }
  // A fork that lives on does not hide that the child is dead.
  OnlyTheSecondFails("os.fork() or time.sleep(600); os._exit(0)", "ended with");
  const auto pooled = Score(
      Body("with multiprocessing.get_context('fork').Pool(2) as p:\n        return sum(p.map(abs, "
           "[-1, ground_truth]))",
           "import multiprocessing"),
      3);
  for (size_t i = 0; i < pooled.size(); ++i) {
    EXPECT_EQ(pooled[i].error, "");
    EXPECT_EQ(pooled[i].score, 1.0 + static_cast<double>(i));
  }
}

// Processes that are not forked import the file by its name.
TEST_F(PythonVerifierTest, AProcessThatIsSpawnedFindsTheFilesFunctions) {
  const auto spawned = Score(Body("with multiprocessing.get_context('spawn').Pool(1) as p:\n       "
                                  " return sum(p.map(twice, "
                                  "[1, ground_truth]))",
                                  "import multiprocessing\n\ndef twice(x):\n    return 2 * x\n"),
                             2);
  for (size_t i = 0; i < spawned.size(); ++i) {
    EXPECT_EQ(spawned[i].error, "");
    EXPECT_EQ(spawned[i].score, 2.0 + 2.0 * static_cast<double>(i));
  }
}

TEST_F(PythonVerifierTest, AChildEndsWithWhoStartedIt) {
  // The channel is closed as when the trainer is killed: nobody kills the group.
  const std::string file = folder_ / "pid";
  const PythonFunction function = Body("exec('while True: pass')");
  const pid_t starter = fork();
  if (starter == 0) {
    PythonVerifier verifier(function, Quick(0, 60'000));
    if (!verifier.Start().ok()) _exit(1);
    std::ofstream(file + ".new") << verifier.process();
    std::filesystem::rename(file + ".new", file);
    (void)verifier.Verify(Samples(1));
    _exit(0);
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(milliseconds(10));
  pid_t child = 0;
  std::ifstream(file) >> child;
  ASSERT_GT(child, 0);
  std::this_thread::sleep_for(milliseconds(100));
  kill(starter, SIGKILL);
  for (int i = 0; i < 1000; ++i) {
    std::ifstream line(fmt::format("/proc/{}/cmdline", child));
    if (line.get() == EOF) return;
    std::this_thread::sleep_for(milliseconds(10));
  }
  kill(child, SIGKILL);
  FAIL() << "the child lives on";
}

TEST_F(PythonVerifierTest, WhatCannotBeCalledIsRefusedAtTheStart) {
  PythonFunction none = Body("return 1");
  none.path = folder_ / "none.py";
  EXPECT_THAT(Refused(none), AllOf(HasSubstr("none.py"), HasSubstr("No such file")));
  PythonFunction other = Body("return 1");
  other.name = "compute_scores";
  EXPECT_THAT(Refused(other), HasSubstr("has no compute_scores"));
  EXPECT_THAT(Refused(File("import no_such_module_of_keel\n")),
              AllOf(HasSubstr("ModuleNotFoundError"), HasSubstr("no_such_module_of_keel"),
                    HasSubstr("line 1"), HasSubstr("reward.custom_reward_function.path")));
  EXPECT_THAT(Refused(File("def compute_score(:\n")), HasSubstr("SyntaxError"));
  EXPECT_THAT(Refused(File("def compute_score(response):\n    return 1\n")),
              AllOf(HasSubstr("compute_score(response) cannot be called with data_source, "
                              "solution_str, ground_truth, extra_info"),
                    HasSubstr("TypeError")));
  EXPECT_THAT(Refused(File("compute_score = 3\n")), HasSubstr("is no function"));
  EXPECT_THAT(Refused(File("import sys\nsys.exit(5)\n")), HasSubstr("SystemExit"));
  PythonFunction unknown = Body("return 1");
  unknown.kwargs = {{"strictness", 2}};
  EXPECT_THAT(Refused(unknown), HasSubstr("strictness"));
  PythonFunction slow = File("import time\ntime.sleep(600)\n");
  slow.start_limit = milliseconds(300);
  PythonVerifier verifier(slow, Quick());
  EXPECT_THAT(verifier.Start().message(), HasSubstr("reward.start_timeout_seconds"));
  PythonFunction python = Body("return 1");
  python.python = "/no/such/python3";
  EXPECT_THAT(Refused(python), AllOf(HasSubstr("/no/such/python3"), HasSubstr("reward.python")));
}

TEST_F(PythonVerifierTest, MadeFromTheConfiguration) {
  RewardSection reward;
  reward.custom_reward_function.path = Body("return ground_truth / 2").path;
  reward.python = Python();
  EXPECT_EQ(TypeOf(reward), RewardType::kPython);
  EXPECT_EQ(PoolBatch(reward), 1u);
  RewardPool pool(3, PoolBatch(reward), ValueOrThrow(MakeVerifierFactory(reward)));
  ASSERT_TRUE(pool.Start().ok());
  for (auto& sample : Samples(9)) pool.Submit(std::move(sample));
  const auto results = pool.Collect(CollectLimit(reward, 9));
  for (size_t i = 0; i < results.size(); ++i)
    EXPECT_EQ(results[i].score, static_cast<double>(i) / 2) << results[i].error;
  // A child that ends comes back with the same function; with another there would be two scores.
  const auto score_after = [&](const std::string& text) {
    PythonFunction ends = File(
        "import os\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if ground_truth == 0:\n        os._exit(1)\n    return 1\n");
    reward.custom_reward_function.path = ends.path;
    reward.max_retries = 0;
    RewardPool one(1, 1, ValueOrThrow(MakeVerifierFactory(reward)));
    EXPECT_TRUE(one.Start().ok());
    const auto samples = Samples(2);
    one.Submit(samples[0]);
    EXPECT_FALSE(one.Collect(CollectLimit(reward, 1))[0].ok());
    if (!text.empty()) std::ofstream(ends.path) << text;
    one.Submit(samples[1]);
    return one.Collect(CollectLimit(reward, 1))[0].score;
  };
  EXPECT_EQ(score_after(""), 1);
  try {
    score_after("def compute_score(*all, **more):\n    return 2\n");
    ADD_FAILURE() << "another function scored";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("content of reward.custom_reward_function.path has "
                                        "changed since the run began"));
  }
  reward.type = RewardType::kMath;
  EXPECT_THAT(MakeVerifierFactory(reward).status().message(),
              HasSubstr("reward.custom_reward_function.path belongs to reward.type: python"));
  reward = {};
  reward.type = RewardType::kPython;
  EXPECT_THAT(MakeVerifierFactory(reward).status().message(),
              HasSubstr("reward.custom_reward_function.path is not given"));
}

}  // namespace
}  // namespace keel::rewards
