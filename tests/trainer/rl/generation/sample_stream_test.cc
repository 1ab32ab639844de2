#include "trainer/rl/generation/sample_stream.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "trainer/desk/ledger_file.h"

namespace keel::trainer::rl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

// A run that goes on from a checkpoint whose ledger holds one sample, of position 8, whole.
class SampleStreamTest : public ::testing::Test {
 protected:
  SampleStreamTest()
      : folder_(fs::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    LogOptions log;
    log.file = folder_ / "log";
    log_.emplace(log);
    desk::DeskSettings settings;
    settings.host = "127.0.0.1";
    settings.secret = "secret";
    desk_ = ValueOrThrow(desk::Desk::Start(settings, *log_));
    options_.max_staleness = 1;
    samples_.first = 8;
    samples_.batch = 4;
    samples_.end = 40;
    samples_.n = 2;
  }
  ~SampleStreamTest() override { fs::remove_all(folder_); }

  SampleStream Opened(const std::vector<std::string>& changed = {}) {
    SampleStream stream(*desk_, options_, *log_);
    desk::Ledger ledger;
    ledger.frontier = 8;
    ledger.steps = 2;
    ledger.versions = {{3, 2}};
    desk::Finished finished;
    finished.response.position = 8;
    finished.response.tokens = {1, 2};
    finished.response.score = 1;
    finished.spans = {{0, 3}};
    ledger.samples[{8, 0}].finished = finished;
    ThrowIfError(stream.Restore(desk::EncodeLedger(ledger), changed));
    ThrowIfError(stream.Open(samples_, [](int64_t) { return Prompt(); }));
    return stream;
  }
  // What the ledger holds once the run has been resumed.
  size_t GoesOn(const std::vector<std::string>& changed) {
    Opened(changed);
    const desk::Ledger opened = desk_->LedgerOf(desk::Stream::kTrain);
    EXPECT_EQ(opened.frontier, 8);
    return opened.samples.size();
  }
  std::string Log() const {
    std::ifstream file(folder_ / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const fs::path folder_;
  std::optional<Logger> log_;
  std::unique_ptr<desk::Desk> desk_;
  AsyncSection options_;
  RunSamples samples_;
};

TEST_F(SampleStreamTest, WhatACheckpointHoldsGoesOn) { EXPECT_EQ(GoesOn({}), 1u); }

TEST_F(SampleStreamTest, AResponseThatTheOldRewardScoredIsGeneratedAgain) {
  EXPECT_EQ(GoesOn({"reward.format_score"}), 0u);
  EXPECT_THAT(Log(), HasSubstr("1 samples that the checkpoint holds"));
}

TEST_F(SampleStreamTest, WhereNoStepIsLeftNothingIsSaidToBeGeneratedAgain) {
  samples_.end = samples_.first;
  EXPECT_EQ(GoesOn({}), 0u);
  EXPECT_THAT(Log(), Not(HasSubstr("generated again")));
}

TEST_F(SampleStreamTest, AStepIsRecordedOnceItIsDone) {
  samples_.batch = samples_.n = 1;
  options_.schedule_record = folder_ / "schedule";
  const fs::path file = folder_ / "schedule" / "3.jsonl";
  SampleStream stream = Opened();
  EXPECT_EQ(ValueOrThrow(stream.Take(3, false, true)).size(), 1u);
  EXPECT_FALSE(fs::exists(file));
  stream.StepDone();
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(SampleStreamTest, AStepThatIsLeftIsNotRecorded) {
  samples_.batch = samples_.n = 1;
  options_.schedule_record = folder_ / "schedule";
  SampleStream stream = Opened();
  EXPECT_EQ(ValueOrThrow(stream.Take(3, false, true)).size(), 1u);
  stream.Leave();
  stream.StepDone();
  EXPECT_FALSE(fs::exists(folder_ / "schedule"));
}

}  // namespace
}  // namespace keel::trainer::rl
