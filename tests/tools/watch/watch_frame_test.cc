#include "tools/watch/watch_frame.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>

#include "common/files/file_system.h"
#include "common/terminal.h"
#include "tools/report/text_plot.h"
#include "tools/watch/watch_page.h"

namespace keel::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

std::vector<MetricPoint> Points(const std::vector<double>& values) {
  std::vector<MetricPoint> points;
  for (const double value : values)
    points.push_back({static_cast<int64_t>(points.size()) + 1, value});
  return points;
}

TEST(TextPlotTest, ASparklineGoesFromTheLeastToTheGreatest) {
  EXPECT_EQ(Sparkline(Points({0, 1, 2, 3, 4, 5, 6, 7}), 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline(Points({0, 2, 7, 7}), 2), "▁█");  // means of parts
  EXPECT_EQ(Sparkline(Points({3, 3, 3}), 20), "▅▅▅");   // no wider than there are steps
  EXPECT_EQ(Sparkline(Points({0, NAN, 7}), 3), "▁ █");
  EXPECT_EQ(Sparkline(Points({INFINITY}), 3), " ");
  EXPECT_EQ(Sparkline({}, 3), "   ");
  // Their difference is no number of a double.
  EXPECT_EQ(Sparkline(Points({0, 1e308, 7, -1e308}), 4), "▁ █ ");
}

TEST(TextPlotTest, AChartHasItsRangeAtTheLeft) {
  const auto chart = DotChart(Points({4, 3, 2, 1}), 12, 2);
  // Two characters wide: four columns of dots, eight rows of them, from above left to below right.
  EXPECT_TRUE(chart.empty());  // no room
  const auto wide = DotChart(Points({8, 7, 6, 5, 4, 3, 2, 1}), 14, 2);
  EXPECT_THAT(wide, ElementsAre("        8│⠑⢄⠀⠀", "        1│⠀⠀⠑⢄"));
  EXPECT_TRUE(DotChart(Points({NAN, NAN}), 40, 5).empty());
  EXPECT_TRUE(DotChart({}, 40, 5).empty());
}

TEST(TextPlotTest, ABarOfSharesIsFull) {
  const std::vector<std::pair<std::string, double>> parts = {{"a", 1}, {"b", 2}, {"c", 1}};
  EXPECT_EQ(ShareBar(parts, 8), "██▒▒▒▒▓▓");
  for (int columns = 0; columns < 20; ++columns)
    EXPECT_EQ(DisplayWidth(ShareBar(parts, columns)), columns);
}

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-watch-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    run_ = folder_ + "/run";
  }
  ~WatchTest() override { std::filesystem::remove_all(folder_); }
  void Append(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(run_);
    std::ofstream(run_ + "/" + file, std::ios::app) << text;
  }
  void Step(int64_t step, double loss) {
    const Json line = {{"step", step},
                       {"data",
                        {{"loss_metrics/global_avg_loss", loss},
                         {"throughput(tps)", 1000},
                         {"time_metrics/end_to_end(s)", 2.0},
                         {"time_metrics/forward_backward(s)", 1.5},
                         {"time_metrics/data_loading(s)", 0.1}}}};
    Append("metrics.jsonl", line.dump() + "\n");
  }
  std::map<std::string, std::string> Facts(WatchedRun& run) {
    EXPECT_TRUE(run.Look().ok());
    std::map<std::string, std::string> facts;
    for (const auto& [name, text] : WatchFacts(run.state())) facts[name] = text;
    return facts;
  }

  std::string folder_, run_;
};

TEST_F(WatchTest, ARunThatWritesNoMetricsHasBegunAllTheSame) {
  WatchedRun run(run_);
  std::filesystem::create_directories(run_ + "/global_step_3");
  EXPECT_THAT(Facts(run)["state"], HasSubstr("has no metrics.jsonl (trainer.logger: jsonl)"));
}

TEST_F(WatchTest, FromBeforeTheRunBeginsToItsEnd) {
  WatchedRun run(run_);
  EXPECT_EQ(Facts(run)["state"], "has not begun");
  Append("config.yaml", "trainer: {total_training_steps: 4}\nreward: {url: http://me:secret@h/}\n");
  EXPECT_EQ(Facts(run)["state"], "has not begun");
  Step(1, 5);
  Step(2, 3);
  Append("metrics.jsonl", R"({"step": 3, "da)");  // being written
  auto facts = Facts(run);
  EXPECT_THAT(facts["state"], HasSubstr("is not running; last line 0 s ago"));
  EXPECT_EQ(facts["step"], "2/4 (50 %), 0:00:04 left");
  EXPECT_EQ(facts["loss"], "3.0000");
  EXPECT_EQ(facts["tokens/s"], "1000");
  EXPECT_EQ(facts["checkpoint"], "none");
  EXPECT_EQ(run.state().run->strange_lines, 0);
  Append("metrics.jsonl", "ta\": {\"lr\": 1}}\n");
  Step(4, 3.5);
  facts = Facts(run);
  EXPECT_THAT(facts["state"], HasSubstr("all steps are done"));
  EXPECT_EQ(facts["step"], "4/4 (100 %)");
  EXPECT_EQ(facts["loss"], "3.5000, best 3.0000 at step 2");
  EXPECT_EQ(run.state().run->metrics.at("lr").back().step, 3);
  Append("checkpoints.jsonl", "{\"event\": \"sa\n{\"event\": \"another\"}\n");
  (void)Facts(run);
  EXPECT_THAT(RunWarnings(*run.state().run),
              testing::ElementsAre("1 lines of checkpoints.jsonl are damaged"));
}

// Of a run by epochs its steps say how many they are, and may learn better; its configuration goes
// before them.
TEST_F(WatchTest, ARunByEpochs) {
  Append("config.yaml", "trainer: {total_training_steps: null, total_epochs: 2}\n");
  Append("metrics.jsonl", R"({"step": 1, "data": {"loss": 1}, "total_steps": 10})"
                          "\n");
  Append("metrics.jsonl", R"({"step": 2, "data": {"loss": 1}, "total_steps": 8})"
                          "\n");
  Append("metrics.jsonl", R"({"step": 2, "data": {"val/loss": 1}})"
                          "\n");
  WatchedRun run(run_);
  EXPECT_EQ(Facts(run)["step"], "2/8 (25 %)");
  std::ofstream(run_ + "/config.yaml") << "trainer: {total_training_steps: 4}\n";
  EXPECT_EQ(Facts(run)["step"], "2/4 (50 %)");
  std::filesystem::remove(run_ + "/config.yaml");
  std::ofstream(run_ + "/metrics.jsonl") << R"({"step": 1, "data": {"loss": 1}})"
                                            "\n";
  EXPECT_EQ(Facts(run)["step"], "1");
}

// A run that goes on from an earlier step replaces the file by what it keeps of it.
TEST_F(WatchTest, ARunThatGoesOnFromAnEarlierStep) {
  for (int64_t step = 1; step <= 6; ++step) Step(step, 10 - static_cast<double>(step));
  WatchedRun run(run_);
  EXPECT_EQ(Facts(run)["step"], "6");
  std::ifstream old(run_ + "/metrics.jsonl");
  std::ofstream kept(run_ + "/kept");
  std::string line;
  for (int i = 0; i < 4 && std::getline(old, line); ++i) kept << line << "\n";
  kept.close();
  std::filesystem::rename(run_ + "/kept", run_ + "/metrics.jsonl");
  const std::string load = "{\"event\": \"load\", \"step\": 4}\n";
  Append("checkpoints.jsonl", load);
  Step(5, 20);
  const auto facts = Facts(run);
  EXPECT_EQ(facts.at("step"), "5");
  EXPECT_EQ(run.state().run->metrics.at("loss_metrics/global_avg_loss").size(), 5U);
  EXPECT_THAT(RunWarnings(*run.state().run), ElementsAre("it went on from a checkpoint once"));
  // Further back, which metrics.jsonl does not know of any more; then another run takes the place.
  Append("checkpoints.jsonl", load + "{\"event\": \"load\", \"step\": 2}\n");
  Facts(run);
  EXPECT_THAT(RunWarnings(*run.state().run), ElementsAre("it went on from a checkpoint 3 times"));
  Append("checkpoints.jsonl", "{\"event\": \"begin\", \"resume_mode\": \"disable\"}\n");
  Facts(run);
  EXPECT_THAT(RunWarnings(*run.state().run), ElementsAre());
}

TEST_F(WatchTest, CheckpointsAndSavesInFlight) {
  Step(1, 5);
  Append(
      "checkpoints.jsonl",
      R"({"time":"2026-11-25T02:35:44Z","event":"save","step":5,"total_bytes":3145728,"lost_s":0.25})"
      "\n"
      R"({"time":"2026-11-25T02:35:50Z","event":"save_failed","step":6})"
      "\n");
  std::filesystem::create_directories(run_ + "/global_step_5");
  std::filesystem::create_directories(run_ + "/.tmp-10-686827937af969dee751c55f");
  std::filesystem::create_directories(run_ + "/.tmp-11-not-a-save");
  WatchedRun run(run_);
  auto facts = Facts(run);
  EXPECT_THAT(facts["checkpoint"], HasSubstr("step 5, "));
  EXPECT_THAT(facts["checkpoint"], HasSubstr("3.0 MiB, lost 0.25 s; 1 there"));
  EXPECT_EQ(facts["saving"], "step 10 was not finished: the next start removes it");
  EXPECT_EQ(run.state().run->checkpoints.at(0).at_s, 1'795'574'144);
  // One that is committed has its line when the step beside it is over; another that is pinned
  // meanwhile is no newer for that.
  const auto commit = [&](const std::string& step, int seconds_ago) {
    std::filesystem::create_directories(run_ + "/" + step);
    std::ofstream(run_ + "/" + step + "/manifest.json") << "{}";
    std::filesystem::last_write_time(
        run_ + "/" + step + "/manifest.json",
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
  };
  commit("global_step_5", 90);
  commit("global_step_6", 30);
  std::ofstream(run_ + "/global_step_5/pinned") << "";
  facts = Facts(run);
  EXPECT_THAT(facts["checkpoint"], AllOf(HasSubstr("step 6, 3"), HasSubstr("s ago; 2 there")));
}

// Who holds a lock is in its file; whether he still does, the kernel says.
TEST_F(WatchTest, ARunThatWasKilledDoesNotPassForRunning) {
  Step(1, 5);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  Append(".keel-lock", fmt::format("run x, host {}, pid 1, since 2026-11-25T02:35:44Z", host));
  WatchedRun run(run_);
  EXPECT_THAT(Facts(run)["state"], HasSubstr("was killed, or lost its machine: run x"));
  std::filesystem::create_directories(run_ + "/.tmp-10-686827937af969dee751c55f");
  {
    const auto files = OpenPosixFileSystem(run_, false);
    const auto lock = (*files)->Lock(".keel-lock", fmt::format("run x, host {}, pid 2", host));
    ASSERT_TRUE(lock.ok()) << lock.status().ToString();
    auto facts = Facts(run);
    EXPECT_THAT(facts["state"], HasSubstr("running; last line"));
    EXPECT_THAT(facts["saving"], HasSubstr("step 10 for "));
  }
  std::ofstream(run_ + "/.keel-lock") << "run x, host elsewhere.example, pid 1, since now";
  EXPECT_THAT(Facts(run)["state"], HasSubstr("running: run x, host elsewhere.example"));
}

TEST_F(WatchTest, AFrameFitsAnyTerminal) {
  Append("config.yaml", "trainer: {total_training_steps: 40}\n");
  for (int64_t step = 1; step <= 30; ++step) Step(step, 100.0 / static_cast<double>(step));
  WatchedRun run(run_);
  ASSERT_TRUE(run.Look().ok());
  for (int rows = 1; rows < 60; ++rows) {
    for (const int columns : {1, 7, 20, 33, 80, 200}) {
      const auto lines = WatchFrame(run.state(), columns, rows);
      ASSERT_LE(lines.size(), static_cast<size_t>(rows));
      for (const std::string& line : lines) ASSERT_LE(DisplayWidth(line), columns);
    }
  }
  const std::string all = fmt::format("{}", fmt::join(WatchFrame(run.state(), 80, 40), "\n"));
  EXPECT_THAT(all, HasSubstr("loss of steps 1 to 30"));
  EXPECT_THAT(all, HasSubstr("forward, backward 75 %"));
  EXPECT_THAT(all, HasSubstr("other 20 %"));
  EXPECT_THAT(all, HasSubstr("100│"));
}

TEST_F(WatchTest, PartsOfTheLastStepAddUpToIt) {
  Step(1, 5);
  Step(2, 4);
  WatchedRun run(run_);
  ASSERT_TRUE(run.Look().ok());
  EXPECT_THAT(LastStepParts(*run.state().run),
              ElementsAre(Pair("data", 0.1), Pair("forward, backward", 1.5),
                          Pair("other", ::testing::DoubleNear(0.4, 1e-12))));
}

TEST_F(WatchTest, TextOfTheRunIsNoMarkupAndNoControl) {
  Step(1, 5);
  Append("metrics.jsonl", R"({"step":2,"data":{"<script>\u001b[31m":1,"lr":"nan"}})"
                          "\n");
  Append(".keel-lock", "run <img src=x onerror=alert(1)>\x1b[2J, host a, pid 1");
  WatchedRun run(run_);
  ASSERT_TRUE(run.Look().ok());
  const Json answer = Json::parse(WatchAnswer(run.state(), 7));
  EXPECT_EQ(answer["version"], 7);
  const std::string html = answer["html"];
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, Not(HasSubstr("\x1b")));
  EXPECT_THAT(html, HasSubstr("<svg"));
  for (const std::string& line : WatchFrame(run.state(), 300, 0))
    EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace keel::tools
