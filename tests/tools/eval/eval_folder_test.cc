#include "tools/eval/eval_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace keel::tools {
namespace {

namespace fs = std::filesystem;

class EvalFolderTest : public testing::Test {
 protected:
  EvalFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "keel-eval-XXXXXX").string();
    path_ = fs::path(::mkdtemp(pattern.data())) / "eval";
  }
  ~EvalFolderTest() override { fs::remove_all(path_.parent_path()); }

  EvalFolder Opened(int replica = 0, const Json& settings = {{"n", 2}, {"seed", 0}}) {
    auto folder = EvalFolder::Open(path_.string(), settings, replica);
    EXPECT_TRUE(folder.ok()) << folder.status().ToString();
    return *std::move(folder);
  }
  static Json Line(int64_t row, int sample) { return {{"row", row}, {"sample", sample}}; }
  void Add(const std::string& file, const std::string& text) const {
    std::ofstream(path_ / file, std::ios::app) << text;
  }

  fs::path path_;
};

TEST_F(EvalFolderTest, GoesOnBehindALineThatWasCutOff) {
  {
    EvalFolder folder = Opened();
    ASSERT_TRUE(folder.Append(Line(0, 0)).ok());
  }
  Add("samples.part-0.jsonl", R"({"row": 0, "samp)");
  Add("samples.part-3.jsonl", "{\"row\": 1, \"sample\": 1}\n{\"row\": 1");  // of another copy
  {
    EvalFolder folder = Opened();
    EXPECT_EQ(folder.done().size(), 2u);
    ASSERT_TRUE(folder.Append(Line(0, 1)).ok());
    ASSERT_TRUE(folder.Append(Line(1, 0)).ok());
    const auto all = folder.Gather(2, {0, 1});
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    ASSERT_TRUE(folder.Finish(*all, {{"mean", 1}}).ok());
  }
  EXPECT_FALSE(fs::exists(path_ / "samples.part-0.jsonl"));
  EXPECT_FALSE(fs::exists(path_ / "samples.part-3.jsonl"));
  EXPECT_TRUE(fs::exists(path_ / "summary.json"));
  EXPECT_EQ(Opened().done().size(), 4u);
}

TEST_F(EvalFolderTest, OtherSettingsAreRefusedByName) {
  { Opened(); }
  const auto other = EvalFolder::Open(path_.string(), {{"n", 2}, {"seed", 5}}, 0);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), StatusCode::kConfig);
  EXPECT_NE(other.status().message().find("seed is 0 there and 5 here"), std::string::npos)
      << other.status().message();
  EXPECT_EQ(other.status().message().find("n is"), std::string::npos);
}

TEST_F(EvalFolderTest, OneWritesAtATime) {
  const EvalFolder folder = Opened();
  const auto second = EvalFolder::Open(path_.string(), {{"n", 2}, {"seed", 0}}, 0);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kBusy);
}

TEST_F(EvalFolderTest, AFolderOfSomethingElseIsLeftAlone) {
  fs::create_directories(path_);
  Add("thesis.tex", "x");
  const auto opened = EvalFolder::Open(path_.string(), {{"n", 2}}, 0);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("thesis.tex"), std::string::npos);
}

TEST_F(EvalFolderTest, WhatIsMissingIsNamed) {
  EvalFolder folder = Opened();
  ASSERT_TRUE(folder.Append(Line(0, 0)).ok());
  const auto all = folder.Gather(2, {0});
  ASSERT_FALSE(all.ok());
  EXPECT_NE(all.status().message().find("sample 1 of row 0"), std::string::npos);
}

}  // namespace
}  // namespace keel::tools
