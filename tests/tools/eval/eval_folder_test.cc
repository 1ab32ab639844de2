#include "tools/eval/eval_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

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

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
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
    EXPECT_EQ(folder.done().size(), 2);
    ASSERT_TRUE(folder.Append(Line(0, 1)).ok());
    ASSERT_TRUE(folder.Append(Line(1, 0)).ok());
    const Status all = folder.Gather(2, 2);
    ASSERT_TRUE(all.ok()) << all.ToString();
    ASSERT_TRUE(folder.Finish({{"mean", 1}}).ok());
  }
  EXPECT_FALSE(fs::exists(path_ / "samples.part-0.jsonl"));
  EXPECT_FALSE(fs::exists(path_ / "samples.part-3.jsonl"));
  EXPECT_TRUE(fs::exists(path_ / "summary.json"));
  EXPECT_EQ(Opened().done().size(), 4);
  std::ifstream file(path_ / "samples.jsonl");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(),
            "{\"row\":0,\"sample\":0}\n{\"row\":0,\"sample\":1}\n{\"row\":1,\"sample\":0}\n"
            "{\"row\": 1, \"sample\": 1}\n");
}

// Lines longer than what is read at a time, at its border, damaged ones between, and one twice.
TEST_F(EvalFolderTest, LinesAreFoundWhereTheyStandAndWrittenInOrder) {
  const auto line = [](int64_t row, int sample, size_t bytes) {
    Json json = Line(row, sample);
    json["output"] = std::string(bytes, static_cast<char>('a' + row));
    return json;
  };
  const std::vector<Json> wanted = {line(0, 0, 3 << 20), line(0, 1, 10), line(1, 0, (1 << 20) - 40),
                                    line(1, 1, 0)};
  {
    EvalFolder folder = Opened();
    for (const size_t i : {2, 0, 3}) ASSERT_TRUE(folder.Append(wanted[i]).ok());
  }
  Add("samples.part-0.jsonl", std::string("\0\0\0\n", 4) + "{\"row\": 1}\n" + wanted[2].dump());
  Add("samples.part-1.jsonl", line(0, 1, 7).dump() + "\n" + wanted[1].dump() + "\n");
  EvalFolder folder = Opened();
  EXPECT_EQ(folder.done().size(), 4);
  EXPECT_TRUE(folder.done().Has(1, 0));
  EXPECT_FALSE(folder.done().Has(2, 0));
  ASSERT_TRUE(folder.Gather(2, 2).ok());
  std::vector<Json> found;
  const Status read = folder.done().ForEachSample([&](int64_t row, int sample, const Json& json) {
    EXPECT_EQ(json["row"], row);
    EXPECT_EQ(json["sample"], sample);
    found.push_back(json);
    return Status::Ok();
  });
  ASSERT_TRUE(read.ok()) << read.ToString();
  EXPECT_EQ(found, wanted);
  ASSERT_TRUE(folder.Finish({}).ok());
  std::ifstream file(path_ / "samples.jsonl");
  std::string text;
  for (const Json& json : wanted) {
    ASSERT_TRUE(std::getline(file, text));
    EXPECT_EQ(text, json.dump());
  }
  EXPECT_FALSE(std::getline(file, text));
}

// Whoever wrote it, and in whatever order the files are read.
TEST_F(EvalFolderTest, ALineWithAScoreCountsBeforeOneOfAFailedReward) {
  { EvalFolder folder = Opened(); }
  Json scored = Line(0, 0), failed = Line(0, 0);
  scored["score"] = 1;
  failed["error"] = "no such sum";
  Add("samples.part-0.jsonl", failed.dump() + "\n" + scored.dump() + "\n");
  Json other = Line(0, 1);
  other["error"] = "none";
  Add("samples.part-1.jsonl", failed.dump() + "\n" + other.dump() + "\n");
  EvalFolder folder = Opened();
  EXPECT_EQ(folder.done().size(), 2);
  EXPECT_EQ(folder.done().without_score(), 1);
  EXPECT_TRUE(folder.done().HasScore(0, 0));
  EXPECT_TRUE(folder.done().Has(0, 1));
  EXPECT_FALSE(folder.done().HasScore(0, 1));
  EXPECT_FALSE(folder.done().HasScore(7, 0));
}

TEST_F(EvalFolderTest, SettingsThatWereHalfWrittenAreWrittenAgain) {
  fs::create_directory(path_);
  Add("settings.json.tmp", "{\"n\"");
  { Opened(); }
  EXPECT_FALSE(fs::exists(path_ / "settings.json.tmp"));
  EXPECT_TRUE(fs::exists(path_ / "settings.json"));
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

TEST_F(EvalFolderTest, OfAnObjectTheMembersThatDifferAreNamed) {
  const std::string alike(100, 'x');
  const Json there = {{"reward", {{"files", {{"a.py", "1"}}}, {"reward.type", "exact"}}},
                      {"stop", {alike, "a"}},
                      {"old", 1}};
  const Json here = {
      {"reward", {{"files", {{"a.py", "2"}}}, {"reward.type", "exact"}, {"reward.n", 3}}},
      {"stop", {alike, "b"}}};
  { Opened(0, there); }
  const auto other = EvalFolder::Open(path_.string(), here, 0);
  ASSERT_FALSE(other.ok());
  const std::string& message = other.status().message();
  for (const char* part :
       {"reward.files.a.py is \"1\" there and \"2\" here", "reward.n is null there and 3 here",
        "old is 1 there and null here", "stop differs behind [\"xxx"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find("reward.type"), std::string::npos) << message;
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
  EXPECT_EQ(Names(), std::vector<std::string>{"thesis.tex"});
  // Settings of another program are no evaluation's either.
  fs::remove(path_ / "thesis.tex");
  Add("settings.json", "{\"theme\": \"dark\"}");
  EXPECT_FALSE(EvalFolder::Open(path_.string(), {{"n", 2}}, 0).ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"settings.json"});
}

// The file of who holds it, or held it, is his.
TEST_F(EvalFolderTest, ALockThatWasThereStays) {
  fs::create_directories(path_);
  Add("thesis.tex", "x");
  Add("eval.lock", "");
  EXPECT_FALSE(EvalFolder::Open(path_.string(), {{"n", 2}}, 0).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"eval.lock", "thesis.tex"}));
}

TEST_F(EvalFolderTest, WhatIsMissingIsNamed) {
  EvalFolder folder = Opened();
  ASSERT_TRUE(folder.Append(Line(0, 0)).ok());
  const Status all = folder.Gather(2, 1);
  ASSERT_FALSE(all.ok());
  EXPECT_NE(all.message().find("sample 1 of row 0"), std::string::npos);
}

}  // namespace
}  // namespace keel::tools
