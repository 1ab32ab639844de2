// Files of responses, where an earlier run has left some.
#include "trainer/rl/dump_writer.h"

#include <gmock/gmock.h>

#include <algorithm>
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
  writer.Begin(1);
  for (const int64_t step : {1, 2, 3}) writer.Write(step, {});
  std::ofstream(folder_ / "notes.jsonl") << "mine";
  std::ofstream(folder_ / "3.jsonl.gz") << "mine";
  // Resumed behind step 2: step 3 is done again.
  writer.Begin(3);
  EXPECT_THAT(Names(),
              ElementsAre("1.jsonl", "2.jsonl", "3.jsonl.gz", "earlier.1/3.jsonl", "notes.jsonl"));
  // Another run in the place of this one.
  DumpWriter another("trainer.rollout_data_dir", folder_.string(), log_);
  another.Begin(1);
  another.Write(1, {});
  EXPECT_THAT(Names(), ElementsAre("1.jsonl", "3.jsonl.gz", "earlier.1/3.jsonl",
                                   "earlier.2/1.jsonl", "earlier.2/2.jsonl", "notes.jsonl"));
  // Nothing there, and nothing to write.
  DumpWriter("trainer.rollout_data_dir", (folder_ / "none").string(), log_).Begin(1);
  DumpWriter("trainer.rollout_data_dir", std::nullopt, log_).Begin(1);
}

}  // namespace
}  // namespace keel::trainer::rl
