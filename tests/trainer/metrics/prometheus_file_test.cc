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
using Metrics = std::vector<std::pair<std::string, double>>;

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
};

TEST_F(PrometheusFileTest, EveryLineIsOneOfTheTextFormatAndEveryNameStandsOnce) {
  PrometheusFile file(folder_ / "run.prom", "a \"run\"\\\n", *log_);
  file.Write(7, Metrics{{"a/b", 1}, {"a_b", 2}, {"mfu(%)", 0.5}, {"step", 3}, {"x", std::nan("")}});
  file.Write(8, Metrics{{"a_b", -1e-300}, {"y", -INFINITY}});
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
  EXPECT_GT(std::stod(values.at("keel_updated_seconds")), 1.7e9);
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
  PrometheusFile file(folder_ / "gone" / "run.prom", "run", *log_);
  for (int step = 1; step <= 3; ++step) file.Write(step, Metrics{{"a", step}});
  fs::create_directory(folder_ / "gone");
  file.Write(4, Metrics{});
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
