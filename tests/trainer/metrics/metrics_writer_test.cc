#include "trainer/metrics/metrics_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "trainer/metrics/console_line.h"

namespace keel::trainer {
namespace {

std::string Text(const StepLine& line) { return line.ToJson().dump(); }

TEST(StepLineTest, KeepsTheOrderInWhichNamesCameFirst) {
  StepLine line;
  line.Set("z", 0.5);
  line.Set("a", std::string("text"));
  line.Set("m", 1.0);
  line.Set("z", 0.25);
  EXPECT_EQ(Text(line), R"({"z":0.25,"a":"text","m":1.0})");
}

// A reader tells a count from a measurement by it.
TEST(StepLineTest, CountsStayWholeNumbers) {
  StepLine line;
  line.Set("count", size_t{3});
  line.Set("large", int64_t{9007199254740993});  // no double has it
  line.Set("number", 3.0);
  EXPECT_EQ(Text(line), R"({"count":3,"large":9007199254740993,"number":3.0})");
  EXPECT_EQ(line.Number("count"), 3.0);
}

TEST(StepLineTest, ANameThatIsNotThereIsZero) {
  StepLine line;
  line.Set("text", std::string("7"));
  EXPECT_FALSE(line.Has("loss"));
  EXPECT_EQ(line.Number("loss"), 0.0);
  EXPECT_EQ(line.Number("text"), 0.0);
}

TEST(StepLineTest, SpreadsOfValuesAndOfNone) {
  StepLine line;
  line.SetSpread("some", {2, -1, 5});
  line.SetSpread("none", {});
  EXPECT_EQ(Text(line), R"({"some/mean":2.0,"some/max":5.0,"some/min":-1.0})");
}

TEST(LmTextTest, ShowsWhatTheLineHas) {
  StepLine line;
  line.Set("loss_metrics/global_avg_loss", 2.5);
  line.Set("grad_norm", std::numeric_limits<double>::quiet_NaN());
  line.Set("lr", 3e-4);
  line.Set("throughput(tps)", 1234567.4);
  line.Set("mfu(%)", 41.26);
  line.Set("memory/max_rss(GiB)", 1.5);
  line.Set("time_metrics/end_to_end(s)", 0.254);
  const ConsoleLine shown = LmText(line, {7, 120, 3723, true});
  EXPECT_EQ(WholeText(shown),
            "step   7/120  loss   2.5000  norm      nan  lr 3.00e-04  tok/s 1,234,567  mfu  41.3%  "
            "mem  1.50 GiB  step 0.25 s  eta 1:02:03  SKIPPED: loss or norm not finite");
  // What a run is judged by, its rate, its speed, and what went wrong stay on any terminal.
  EXPECT_EQ(
      FittedText(shown, 110),
      "step   7/120  loss   2.5000  lr 3.00e-04  tok/s 1,234,567  step 0.25 s  SKIPPED: loss or "
      "norm not finite");
  // Where the device's peak is not known there is no MFU to show.
  StepLine other;
  other.Set("gemm_share(%)", 41.26);
  EXPECT_THAT(WholeText(LmText(other, {7, 120, 3723, false})), ::testing::HasSubstr("gemm  41.3%"));
}

class MetricsWriterTest : public ::testing::Test {
 protected:
  MetricsWriterTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-writer-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    LogOptions options;
    options.file = folder_ + "/log";
    log_ = std::make_unique<Logger>(options);
  }
  ~MetricsWriterTest() override { std::filesystem::remove_all(folder_); }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  MetricsWriter Open(const MetricsOptions& options) {
    return ValueOrThrow(MetricsWriter::Open(folder_, RunStart{}, options, *log_));
  }

  std::string folder_;
  std::unique_ptr<Logger> log_;
};

// TensorBoard's events are a log: what an earlier start took back is told again.
TEST_F(MetricsWriterTest, LinesThatComeBackComeBackInTheEvents) {
  const MetricsOptions options{
      .console = false, .tensorboard = true, .tensorboard_dir = folder_ + "/tensorboard"};
  const auto run = [&](const RunStart& start, int64_t last) {
    MetricsWriter metrics = ValueOrThrow(MetricsWriter::Open(folder_, start, options, *log_));
    for (int64_t step = start.step + 1; step <= last; ++step)
      metrics.Record(step, {{fmt::format("from_{}", start.step), 1}});
  };
  run({}, 4);
  run({2, 1, 2}, 3);
  run({4, 2, 2}, 5);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/tensorboard"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  ASSERT_EQ(names.size(), 3U);
  const std::string events = Read("tensorboard/" + names.back());
  const auto count = [&](std::string_view name) {
    int n = 0;
    for (size_t at = 0; (at = events.find(name, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(count("from_0"), 2);  // of 3 and 4
  EXPECT_EQ(count("from_2"), 0);
  EXPECT_EQ(count("from_4"), 1);
}

// One line a step, of what each task tells in the same way.
TEST_F(MetricsWriterTest, WhatIsNotFiniteIsNamedInEveryLine) {
  MetricsWriter metrics = Open({true, false, 1});
  StepLine line;
  line.Set("loss", std::numeric_limits<double>::quiet_NaN());
  metrics.Step(line, {1, 2}, LmText);
  metrics.Validation(1, line, "");
  metrics.Record(2, {{"worst", -std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(Read("metrics.jsonl"),
            "{\"step\":1,\"data\":{\"loss\":\"nan\"},\"total_steps\":2}\n"
            "{\"step\":1,\"data\":{\"loss\":\"nan\"}}\n"
            "{\"step\":2,\"data\":{\"worst\":\"-inf\"}}\n");
  EXPECT_EQ(Read("log"), "");
}

TEST_F(MetricsWriterTest, TheConsoleShowsTheFirstTheLastAndEveryFewSteps) {
  MetricsWriter metrics = Open({false, true, 4});
  const auto text = [](const StepLine&, const StepProgress& progress) {
    return ConsoleLine{{"<" + std::to_string(progress.step) + ">"}};
  };
  for (int64_t step = 1; step <= 10; ++step) metrics.Step({}, {step, 10}, text);
  const std::string log = Read("log");
  std::string shown;
  for (int64_t step = 1; step <= 10; ++step) {
    if (log.find("<" + std::to_string(step) + ">") != std::string::npos)
      shown += std::to_string(step) + " ";
  }
  EXPECT_EQ(shown, "1 4 8 10 ");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/metrics.jsonl"));
}

}  // namespace
}  // namespace keel::trainer
