// Files of responses, where an earlier run has left some.
#include "trainer/rl/dump_writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace keel::trainer::rl {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class DumpWriterTest : public ::testing::Test {
 protected:
  DumpWriterTest() {
    std::string pattern = (fs::temp_directory_path() / "keel-dumps-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DumpWriterTest() override { fs::remove_all(folder_); }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), folder_).string());
    std::sort(names.begin(), names.end());
    return names;
  }
  static LogOptions Quiet() {
    LogOptions options;
    options.level = LogLevel::kError;
    return options;
  }

  fs::path folder_;
  Logger log_{Quiet()};
};

TEST_F(DumpWriterTest, WhatIsDoneAnewIsSetAside) {
  DumpWriter writer("trainer.rollout_data_dir", folder_.string(), log_);
  writer.Begin({}, 1);
  for (const int64_t step : {1, 2, 3}) writer.Write(step, {});
  std::ofstream(folder_ / "notes.jsonl") << "mine";
  std::ofstream(folder_ / "3.jsonl.gz") << "mine";
  // Resumed behind step 2: step 3 is done again.
  writer.Begin({.step = 2, .sequence = 1, .newest_sequence = 1}, 3);
  EXPECT_THAT(Names(), ElementsAre("1.jsonl", "2.jsonl", "3.jsonl.gz", "earlier.1/3.jsonl",
                                   "earlier.1/rewind.json", "notes.jsonl"));
  // Another run in the place of this one.
  DumpWriter another("trainer.rollout_data_dir", folder_.string(), log_);
  another.Begin({.newest_sequence = 1}, 1);
  another.Write(1, {});
  EXPECT_THAT(Names(), ElementsAre("1.jsonl", "3.jsonl.gz", "earlier.1/3.jsonl",
                                   "earlier.1/rewind.json", "earlier.2/1.jsonl",
                                   "earlier.2/2.jsonl", "earlier.2/rewind.json", "notes.jsonl"));
  // Nothing there, and nothing to write.
  DumpWriter("trainer.rollout_data_dir", (folder_ / "none").string(), log_).Begin({}, 1);
  DumpWriter("trainer.rollout_data_dir", std::nullopt, log_).Begin({}, 1);
}

// Back to the newest checkpoint, from one that a start from an earlier step did not come to.
TEST_F(DumpWriterTest, WhatWasSetAsideComesBackWithItsCheckpoint) {
  const auto run = [&](const RunStart& start, int64_t last, const std::string& by) {
    DumpWriter writer("trainer.rollout_data_dir", folder_.string(), log_);
    writer.Begin(start, start.step + 1);
    for (int64_t step = start.step + 1; step <= last; ++step)
      std::ofstream(folder_ / fmt::format("{}.jsonl", step)) << by;
  };
  const auto marks = [&] {
    std::string text;
    for (int step = 1; step < 10; ++step) {
      std::ifstream file(folder_ / fmt::format("{}.jsonl", step));
      std::string by;
      if (file >> by) text += fmt::format("{}{} ", step, by);
    }
    return text;
  };
  run({}, 6, "a");  // saved at 2, 4 and 6
  run({2, 1, 3}, 4, "b");
  EXPECT_EQ(marks(), "1a 2a 3b 4b ");
  run({6, 3, 3}, 7, "c");
  EXPECT_EQ(marks(), "1a 2a 3a 4a 5a 6a 7c ");
  run({4, 2, 3}, 6, "d");  // saved at 6
  run({6, 4, 4}, 8, "e");
  EXPECT_EQ(marks(), "1a 2a 3a 4a 5d 6d 7e 8e ");
  run({6, 3, 4}, 6, "f");
  EXPECT_EQ(marks(), "1a 2a 3a 4a 5a 6a ");
  run({6, 4, 4}, 7, "g");
  EXPECT_EQ(marks(), "1a 2a 3a 4a 5d 6d 7g ");
  run({.step = 6, .elsewhere = true}, 7, "h");
  EXPECT_EQ(marks(), "7h ");
}

// Killed before anything was moved, or on a disk that takes nothing more: what earlier starts set
// aside comes back all the same.
TEST_F(DumpWriterTest, AStartThatSetsNothingAsideHidesNothing) {
  const auto put = [&](int step, const char* by) {
    std::ofstream(folder_ / fmt::format("{}.jsonl", step)) << by;
  };
  const auto begin = [&](const RunStart& start) {
    DumpWriter("trainer.rollout_data_dir", folder_.string(), log_).Begin(start, start.step + 1);
  };
  for (int step = 1; step <= 4; ++step) put(step, "a");  // saved at 2 and 4
  begin({2, 1, 2});
  EXPECT_THAT(Names(), ElementsAre("1.jsonl", "2.jsonl", "earlier.1/3.jsonl", "earlier.1/4.jsonl",
                                   "earlier.1/rewind.json"));
  put(3, "b");
  fs::create_directory(folder_ / "earlier.2");  // killed
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  begin({2, 1, 2});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fs::exists(folder_ / "3.jsonl"));  // where it was
  begin({4, 2, 2});
  std::string by;
  std::ifstream(folder_ / "3.jsonl") >> by;
  EXPECT_EQ(by, "a");
  EXPECT_TRUE(fs::exists(folder_ / "4.jsonl"));
}

}  // namespace
}  // namespace keel::trainer::rl
