#include "trainer/metrics/prometheus_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <vector>

namespace keel::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Metrics = std::vector<std::pair<std::string, double>>;

class StoppedClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return now; }
  std::chrono::system_clock::time_point Wall() const override {
    return std::chrono::system_clock::time_point(std::chrono::seconds(1'800'000'000) + now);
  }
  void SleepFor(std::chrono::nanoseconds) const override {}
  std::chrono::nanoseconds now{std::chrono::seconds(5)};
};

class PrometheusFileTest : public ::testing::Test {
 public:
  PrometheusFileTest() {
    folder_ = fs::path(::testing::TempDir()) / ("keel_prometheus_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    LogOptions options;
    options.file = folder_ / "log";
    log_ = std::make_unique<Logger>(options);
  }
  ~PrometheusFileTest() override { fs::remove_all(folder_); }
  std::string Read(const std::string& name) const {
    std::ifstream in(folder_ / name);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

 protected:
  fs::path folder_;
  std::unique_ptr<Logger> log_;
  StoppedClock clock_;
};

TEST_F(PrometheusFileTest, EveryLineIsOneOfTheTextFormatAndEveryNameStandsOnce) {
  PrometheusFile file(folder_ / "run.prom", "a \"run\"\\\n", *log_, clock_);
  file.Write(7, Metrics{{"a/b", 1}, {"a_b", 2}, {"mfu(%)", 0.5}, {"step", 3}, {"x", std::nan("")}});
  EXPECT_THAT(Read("run.prom"), HasSubstr(",rank=\"0\"} 7\n"));
  // Once a second at most, and at the end.
  file.Write(8, Metrics{{"a_b", -1e-300}, {"y", -INFINITY}});
  EXPECT_THAT(Read("run.prom"), Not(HasSubstr("keel_y")));
  file.Close();
  std::istringstream text(Read("run.prom"));
  const std::string labels = R"(\{run="a \\"run\\"\\\\\\n",rank="0"\})";
  const std::regex sample("([a-zA-Z_:][a-zA-Z0-9_:]*)" + labels + " (\\S+)");
  std::map<std::string, std::string> values;
  std::string type, line;
  while (std::getline(text, type) && std::getline(text, line)) {
    std::smatch found;
    ASSERT_TRUE(std::regex_match(line, found, sample)) << line;
    EXPECT_EQ(type, "# TYPE " + found.str(1) + " gauge");
    EXPECT_TRUE(values.emplace(found.str(1), found.str(2)).second) << line;
  }
  EXPECT_EQ(values.at("keel_step"), "8");
  EXPECT_EQ(values.at("keel_updated_seconds"), "1800000005");
  values.erase("keel_updated_seconds");
  EXPECT_EQ(values, (std::map<std::string, std::string>{{"keel_step", "8"},
                                                        {"keel_step_2", "3"},
                                                        {"keel_a_b", "1"},
                                                        {"keel_a_b_2", "-1e-300"},
                                                        {"keel_mfu___", "0.5"},
                                                        {"keel_x", "NaN"},
                                                        {"keel_y", "-Inf"}}));
  EXPECT_FALSE(fs::exists(folder_ / "run.prom.tmp"));
}

TEST_F(PrometheusFileTest, WhatCannotBeWrittenIsSaidOnceAndCounted) {
  PrometheusFile file(folder_ / "gone" / "run.prom", "run", *log_, clock_);
  const auto write = [&](int64_t step, const Metrics& metrics) {
    clock_.now += std::chrono::seconds(1);
    file.Write(step, metrics);
  };
  for (int step = 1; step <= 3; ++step) write(step, {{"a", step}});
  fs::create_directory(folder_ / "gone");
  write(4, {});
  file.Close();
  file.Close();
  EXPECT_THAT(Read("gone/run.prom"), HasSubstr("keel_a{run=\"run\",rank=\"0\"} 3"));
  const std::string log = Read("log");
  EXPECT_THAT(log, HasSubstr("stays behind the run from step 1 on: open"));
  EXPECT_THAT(log, HasSubstr("can be written again, after 3 times"));
  EXPECT_THAT(log, HasSubstr("3 of 4 times"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3);
}

}  // namespace
}  // namespace keel::trainer
