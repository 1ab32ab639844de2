#include "trainer/metrics/metrics_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class MetricsFileTest : public ::testing::Test {
 protected:
  MetricsFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-metrics-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    LogOptions options;
    options.file = folder_ + ".log";
    log_ = std::make_unique<Logger>(options);
  }
  ~MetricsFileTest() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(folder_ + ".log");
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string Log() const {
    return Read("../" + std::filesystem::path(folder_).filename().string() + ".log");
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<MetricsFile> Open(int64_t resumed_step) { return Open({.step = resumed_step}); }
  Result<MetricsFile> Open(const RunStart& start) {
    fs_ = ValueOrThrow(OpenPosixFileSystem(folder_, true, LinkPolicy::kFollow));
    KEEL_ASSIGN_OR_RETURN(MetricsHistory history, MetricsHistory::Read(*fs_, start, *log_));
    restored_ = history.restored();
    known_step_ = history.known_step();
    KEEL_RETURN_IF_ERROR(history.Apply());
    return MetricsFile::Open(*fs_, *log_);
  }
  // From the checkpoint of `step`, the folder's `sequence`-th, of `newest`; with lines up to
  // `last`.
  void Run(int64_t step, int64_t sequence, int64_t newest, int64_t last, char mark) {
    MetricsFile file = ValueOrThrow(Open({step, sequence, newest}));
    for (int64_t n = step + 1; n <= last; ++n) file.Write(n, std::string(1, mark));
  }
  // Of each line its step and who wrote it.
  std::string Marks() const {
    std::stringstream lines(Read("metrics.jsonl"));
    std::string marks;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      marks +=
          fmt::format("{}{} ", json.at("step").get<int64_t>(), json.at("data").get<std::string>());
    }
    return marks;
  }
  static std::string Line(int step) { return fmt::format("{{\"step\":{},\"data\":{{}}}}\n", step); }

  std::string folder_;
  std::unique_ptr<Logger> log_;
  std::unique_ptr<FileSystem> fs_;
  std::vector<std::string> restored_;
  int64_t known_step_ = 0;
};

TEST_F(MetricsFileTest, NumbersThatAreNoneHaveOneSpelling) {
  MetricsFile file = ValueOrThrow(Open(0));
  file.Write(3, {{"a", NAN},
                 {"b", INFINITY},
                 {"c", -INFINITY},
                 {"d", 1.5},
                 {"e", "text"},
                 {"f", {{"g", Json::array({-NAN, 2})}}}});
  EXPECT_EQ(
      Read("metrics.jsonl"),
      R"({"step":3,"data":{"a":"nan","b":"inf","c":"-inf","d":1.5,"e":"text","f":{"g":["nan",2]}}})"
      "\n");
  file.Close();
  EXPECT_EQ(Log(), "");
}

TEST_F(MetricsFileTest, ARunThatBeginsAnewLeavesTheEarlierOnesFile) {
  Put("metrics.jsonl", Line(1) + "no JSON\n" + Line(8));
  ValueOrThrow(Open(0)).Write(1, {});
  EXPECT_EQ(Read("metrics.1.jsonl"), Line(1) + "no JSON\n" + Line(8));
  EXPECT_THAT(Log(), AllOf(HasSubstr("metrics.jsonl of an earlier run is now metrics.1.jsonl")));
  ValueOrThrow(Open(0)).Write(2, {});
  EXPECT_EQ(Read("metrics.2.jsonl"), "{\"step\":1,\"data\":null}\n");
  EXPECT_EQ(Read("metrics.jsonl"), "{\"step\":2,\"data\":null}\n");
  EXPECT_EQ(Read("metrics.1.jsonl"), Line(1) + "no JSON\n" + Line(8));
}

TEST_F(MetricsFileTest, ARunThatGoesOnLosesNoLine) {
  Put("metrics.jsonl",
      Line(1) + "?\x1b[31m\n" + Line(2) + "{}\n" + Line(3) + Line(4) + "{\"step\":5,\"da");
  Put("metrics.dropped.jsonl", "from before\n");
  ValueOrThrow(Open(2)).Write(3, {});
  EXPECT_EQ(Read("metrics.jsonl"), Line(1) + Line(2) + "{\"step\":3,\"data\":null}\n");
  EXPECT_EQ(Read("metrics.dropped.jsonl"),
            "from before\n?\x1b[31m\n{}\n{\"step\":5,\"da\n"
            "{\"resumed_step\":2,\"sequence\":0,\"last_step\":2,\"of_last_step\":1,\"lines\":2}\n" +
                Line(3) + Line(4));
  EXPECT_THAT(Log(), AllOf(HasSubstr("2 lines of steps after 2, which are done again"),
                           HasSubstr("and 3 lines that are no metrics, the first of them line 2"),
                           HasSubstr("now at the end of metrics.dropped.jsonl")));
  // Where there is nothing to drop, nothing is said.
  const std::string said = Log();
  ValueOrThrow(Open(3)).Write(4, {});
  EXPECT_EQ(Log(), said);
  EXPECT_THAT(Names(), ElementsAre("metrics.dropped.jsonl", "metrics.jsonl"));
}

// A start from an earlier step that is given up before it has saved anything leaves no trace.
TEST_F(MetricsFileTest, ARunThatGoesBackToTheNewestCheckpointHasTheLinesOfItsOwn) {
  Run(0, 0, 0, 6, 'a');  // saved at 2, 4 and 6
  Run(2, 1, 3, 4, 'b');
  EXPECT_EQ(Marks(), "1a 2a 3b 4b ");
  Run(6, 3, 3, 7, 'c');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5a 6a 7c ");
  EXPECT_THAT(Log(),
              AllOf(HasSubstr("2 lines of steps that were done after step 6 was saved are now"),
                    HasSubstr("4 lines up to step 6 are back")));
  // Where it does save, its checkpoint stands on its lines, and the others on theirs, also later.
  Run(4, 2, 3, 6, 'd');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5d 6d ");
  Run(6, 4, 4, 8, 'e');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5d 6d 7e 8e ");
  Run(6, 3, 4, 6, 'f');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5a 6a ");
  Run(6, 4, 4, 7, 'g');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5d 6d 7g ");
  EXPECT_THAT(Read("metrics.dropped.jsonl"),
              AllOf(HasSubstr("\"b\""), HasSubstr("\"c\""), HasSubstr("\"e\"")));
}

TEST_F(MetricsFileTest, ARunThatBeganAnewByMistakeLeavesNoTraceEither) {
  Run(0, 0, 0, 5, 'a');  // saved at 4
  Run(0, 0, 1, 2, 'b');
  Run(4, 1, 1, 6, 'c');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5c 6c ");
  EXPECT_THAT(Read("metrics.dropped.jsonl"), HasSubstr("\"b\""));
}

// Killed between the two: what is in both places is in the file once.
TEST_F(MetricsFileTest, AStartThatWasKilledWhileItTookLinesOutIsDoneAgain) {
  Run(0, 0, 0, 4, 'a');
  std::string before = Read("metrics.jsonl");
  Run(2, 1, 1, 2, 'b');
  Put("metrics.jsonl", before);
  Run(2, 1, 1, 3, 'c');
  EXPECT_EQ(Marks(), "1a 2a 3c ");
  // So is one that was to begin anew: that is noted before it is done.
  before = Read("metrics.jsonl");
  Run(0, 0, 1, 0, 'd');
  std::filesystem::rename(folder_ + "/metrics.1.jsonl", folder_ + "/metrics.jsonl");
  Run(2, 1, 1, 4, 'e');
  EXPECT_EQ(Marks(), "1a 2a 3e 4e ");
}

// Neither the numbers nor the lines of this folder tell anything of it.
TEST_F(MetricsFileTest, ACheckpointOfAnotherFolderHasNoLinesHere) {
  Run(0, 0, 0, 4, 'a');
  ValueOrThrow(Open({.step = 3, .sequence = 1, .newest_sequence = 2, .elsewhere = true}))
      .Write(4, "b");
  EXPECT_EQ(Marks(), "4b ");
  EXPECT_EQ(known_step_, 0);
  Run(4, 2, 2, 5, 'c');
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5c ");
}

// As those are of a run whose metrics went elsewhere for a while.
TEST_F(MetricsFileTest, StepsThatTheFileDoesNotHaveAreTakenBackInOtherLogs) {
  Run(2, 1, 3, 2, '-');  // back from a newer checkpoint
  EXPECT_EQ(known_step_, 2);
  Run(6, 3, 3, 6, '-');  // and to it
  EXPECT_EQ(known_step_, 2);
  Run(6, 4, 4, 6, '-');  // one of its own
  EXPECT_EQ(known_step_, 6);
}

TEST_F(MetricsFileTest, NothingIsTakenBackTwice) {
  Run(0, 0, 0, 6, 'a');
  Run(2, 1, 3, 4, 'b');
  Run(6, 3, 3, 7, 'c');
  EXPECT_THAT(restored_, SizeIs(4));
  EXPECT_EQ(known_step_, 2);
  Run(6, 3, 3, 7, 'd');
  EXPECT_THAT(restored_, IsEmpty());
  EXPECT_EQ(known_step_, 6);
  EXPECT_EQ(Marks(), "1a 2a 3a 4a 5a 6a 7d ");
}

// A file that someone has cut, lines that a full disk has cost, a log that was torn.
TEST_F(MetricsFileTest, WhatIsNotThereAnyMoreIsSaidAndNotMixed) {
  Run(0, 0, 0, 6, 'a');
  Run(4, 2, 3, 5, 'b');
  const std::string dropped = Read("metrics.dropped.jsonl");
  Put("metrics.jsonl",
      Line(3) + Read("metrics.jsonl").substr(Read("metrics.jsonl").find("{\"step\":5")));
  Run(6, 3, 3, 6, 'c');
  EXPECT_EQ(Read("metrics.jsonl"), Line(3));
  EXPECT_THAT(Log(),
              HasSubstr("lines of steps after 4, as the checkpoint of step 6 was saved with them"));
  Put("metrics.jsonl", Line(3) + Line(4) + Line(5));
  Put("metrics.dropped.jsonl", dropped.substr(0, dropped.size() - 5));
  Run(6, 3, 3, 6, 'c');
  EXPECT_EQ(Read("metrics.jsonl"), Line(3) + Line(4));
  // The next lines do not become part of a torn one.
  Put("metrics.jsonl", Line(1) + Line(2));
  Put("metrics.dropped.jsonl", "torn");
  Run(1, 1, 2, 1, 'd');
  EXPECT_THAT(Read("metrics.dropped.jsonl"), StartsWith("torn\n{\"resumed_step\":1"));
  Run(2, 2, 2, 2, 'e');
  EXPECT_EQ(Read("metrics.jsonl"), Line(1) + Line(2));
}

TEST_F(MetricsFileTest, WhatIsNoFileIsRefusedByItsPath) {
  ASSERT_EQ(mkfifo((folder_ + "/metrics.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(Open(0).status().message(),
              HasSubstr(folder_ + "/metrics.jsonl: not a regular file"));
  std::filesystem::remove(folder_ + "/metrics.jsonl");
  std::filesystem::create_directory(folder_ + "/metrics.jsonl");
  EXPECT_THAT(Open(3).status().message(),
              HasSubstr(folder_ + "/metrics.jsonl: not a regular file"));
}

// A file that may not grow stands for a full disk.
TEST_F(MetricsFileTest, LinesThatCannotBeWrittenAreCountedAndSaid) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto limit = [&](rlim_t bytes) {
    const rlimit set{bytes, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &set), 0);
  };
  MetricsFile file = ValueOrThrow(Open(0));
  file.Write(1, {});
  const std::string whole = Read("metrics.jsonl");
  limit(whole.size() + 5);  // part of a line fits
  for (int step = 2; step <= 4; ++step) file.Write(step, {});
  limit(before.rlim_cur);
  EXPECT_EQ(Read("metrics.jsonl"), whole);
  const auto said = [&](std::string_view text) {
    int64_t count = 0;
    const std::string log = Log();
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(said("metrics are being lost from step 2 on"), 0);  // the limit is of the log, too
  file.Write(5, {});
  EXPECT_EQ(said("can be written again; 3 lines before this were lost"), 1);
  EXPECT_EQ(Read("metrics.jsonl"), whole + "{\"step\":5,\"data\":null}\n");
  file.Close();
  file.Close();
  EXPECT_EQ(said("3 of the 5 lines that this run had for"), 1);
}

}  // namespace
}  // namespace keel::trainer
