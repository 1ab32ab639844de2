#include "trainer/rl/generation/sample_stream.h"

#include <gtest/gtest.h>

#include "trainer/desk/ledger_file.h"

namespace keel::trainer::rl {
namespace {

// What a checkpoint's ledger still holds once a run has been resumed from it.
size_t GoesOn(const std::vector<std::string>& changed) {
  LogOptions quiet;
  quiet.level = LogLevel::kError;
  Logger log(quiet);
  desk::DeskSettings settings;
  settings.host = "127.0.0.1";
  settings.secret = "secret";
  const auto desk = ValueOrThrow(desk::Desk::Start(settings, log));
  AsyncSection options;
  options.max_staleness = 1;
  SampleStream stream(*desk, options, log);

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
  RunSamples samples;
  samples.first = 8;
  samples.batch = 4;
  samples.end = 40;
  samples.n = 2;
  ThrowIfError(stream.Open(samples, [](int64_t) { return Prompt(); }));
  const desk::Ledger opened = desk->LedgerOf(desk::Stream::kTrain);
  EXPECT_EQ(opened.frontier, 8);
  return opened.samples.size();
}

TEST(SampleStreamTest, AResponseThatTheOldRewardScoredIsGeneratedAgain) {
  EXPECT_EQ(GoesOn({}), 1u);
  EXPECT_EQ(GoesOn({"reward.format_score"}), 0u);
}

}  // namespace
}  // namespace keel::trainer::rl
