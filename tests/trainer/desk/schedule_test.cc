// Which weights choose which tokens, as said beforehand: a fixed number of tokens to a version, or
// what a run recorded; and that the desk keeps to it.

#include "trainer/desk/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/desk/desk_protocol.h"

namespace keel::trainer::desk {
namespace {

using ::testing::HasSubstr;

Finished FinishedOf(SampleId id, std::vector<int32_t> tokens, std::vector<VersionSpan> spans) {
  Finished finished;
  finished.response.position = id.position;
  finished.response.sample = id.sample;
  finished.response.tokens = std::move(tokens);
  finished.spans = std::move(spans);
  return finished;
}

Partial Of(int64_t tokens, std::vector<VersionSpan> spans) {
  Partial partial;
  partial.tokens.assign(static_cast<size_t>(tokens), 7);
  partial.log_probs.assign(static_cast<size_t>(tokens), -1);
  partial.spans = std::move(spans);
  return partial;
}

class ScheduleTest : public ::testing::Test {
 protected:
  ScheduleTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }
  ~ScheduleTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / name) << text;
  }

  const std::filesystem::path folder_;
};

TEST(FixedScheduleTest, TakesUpAVersionEveryFewTokens) {
  const FixedSchedule schedule(10);
  // Versions 4 to 6 hold the updates of 3 to 5 steps; step 5 trains the sample.
  const std::map<int64_t, int64_t> all = {{4, 3}, {5, 4}, {6, 5}};
  const auto next = [&](const Partial& so_far, int64_t due, std::map<int64_t, int64_t> versions) {
    const Turn turn = schedule.Next({8, 0}, so_far, due, versions);
    return std::pair(turn.version, turn.until);
  };
  const auto none = std::pair(int64_t{0}, kToTheEnd);
  EXPECT_EQ(next({}, 5, {{4, 3}}), std::pair(int64_t{4}, int64_t{10}));
  EXPECT_EQ(next(Of(4, {{0, 4}}), 5, {{4, 3}}), std::pair(int64_t{4}, int64_t{10}));
  EXPECT_EQ(next(Of(10, {{0, 4}}), 5, {{4, 3}}), none) << "it waits for the next";
  EXPECT_EQ(next(Of(10, {{0, 4}}), 5, {{4, 3}, {5, 4}}), std::pair(int64_t{5}, int64_t{20}));
  EXPECT_EQ(next(Of(25, {{0, 4}, {10, 5}}), 5, all), std::pair(int64_t{6}, kToTheEnd));
  EXPECT_EQ(next({}, 3, {{4, 3}}), std::pair(int64_t{4}, kToTheEnd)) << "these train it";
}

TEST_F(ScheduleTest, WhatWasRecordedIsSaidAgain) {
  const Finished one = FinishedOf({0, 0}, {1, 2, 3}, {{0, 1}, {2, 3}});
  const Finished other = FinishedOf({1, 0}, {4}, {{0, 2}});
  ThrowIfError(RecordStep(folder_, 1, {RecordOf(one)}));
  ThrowIfError(RecordStep(folder_, 2, {RecordOf(one), RecordOf(other)}));
  ThrowIfError(RecordStep(folder_, 2, {RecordOf(other)}));  // the step was done again
  const auto schedule = ValueOrThrow(RecordedSchedule::Load(folder_));
  EXPECT_EQ(schedule->end(), 2);
  ThrowIfError(schedule->Covers(0, 2, {0}));
  EXPECT_THAT(schedule->Covers(0, 3, {0}).message(), HasSubstr("lacks sample 0 of position 2"));
  EXPECT_THAT(schedule->Covers(0, 2, {0, 1}).message(), HasSubstr("lacks sample 1 of position 0"));

  const auto next = [&](const Partial& so_far, std::map<int64_t, int64_t> versions) {
    const Turn turn = schedule->Next({0, 0}, so_far, 0, versions);
    return std::pair(turn.version, turn.until);
  };
  EXPECT_EQ(next({}, {{1, 0}}), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(next(Of(1, {{0, 1}}), {{1, 0}}), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(next(Of(2, {{0, 1}}), {{1, 0}, {2, 1}}), std::pair(int64_t{0}, kToTheEnd));
  EXPECT_EQ(next(Of(2, {{0, 1}}), {{1, 0}, {2, 1}, {3, 2}}), std::pair(int64_t{3}, kToTheEnd));

  ThrowIfError(schedule->Check(one));
  EXPECT_THAT(schedule->Check(FinishedOf({0, 0}, {1, 2, 4}, {{0, 1}, {2, 3}})).message(),
              HasSubstr("position 0, sample 0"));
  EXPECT_FALSE(schedule->Check(FinishedOf({0, 0}, {1, 2, 3}, {{0, 1}})).ok());
  EXPECT_FALSE(schedule->Check(FinishedOf({5, 0}, {1}, {{0, 1}})).ok());
}

TEST_F(ScheduleTest, WhatIsNoScheduleIsRefused) {
  const auto refused = [&](const char* what) {
    const auto loaded = RecordedSchedule::Load(folder_);
    ASSERT_FALSE(loaded.ok()) << what;
    EXPECT_THAT(loaded.status().message(), HasSubstr(what));
  };
  EXPECT_FALSE(RecordedSchedule::Load(folder_).ok()) << "there is no folder";
  const std::string good = R"({"position":0,"sample":0,"spans":[[0,1]],"tokens":2,"digest":"00"})"
                           "\n";
  Write("notes.txt", "hello");
  refused("no step was recorded there");
  Write("1.jsonl", good + "{");
  refused("1.jsonl:2");
  for (const char* spans :
       {"3", "[[0]]", "[[0,\"1\"]]", "[[1,1]]", "[[0,1],[5,2]]", "[]", "[[0,0]]", "[[0,-1]]"}) {
    Write("1.jsonl", std::string(R"({"position":0,"sample":0,"spans":)") + spans +
                         R"(,"tokens":2,"digest":"00"})");
    refused("1.jsonl:1");
  }
  Write("1.jsonl", good);
  Write("2.jsonl", good);
  refused("stands twice");
}

// A worker is asked for so many tokens, gives the sample back, and newer weights wait for that.
TEST_F(ScheduleTest, TheDeskKeepsToIt) {
  ThrowIfError(RecordStep(folder_, 1, {RecordOf(FinishedOf({0, 0}, {1, 2}, {{0, 1}}))}));
  ThrowIfError(RecordStep(folder_, 2, {RecordOf(FinishedOf({1, 0}, {3, 4, 5}, {{0, 1}, {2, 2}}))}));
  DeskOptions options;
  options.max_staleness = 1;
  options.end = 2;
  options.schedule = ValueOrThrow(RecordedSchedule::Load(folder_));
  DeskProtocol desk = ValueOrThrow(DeskProtocol::Make(options, {}));
  EXPECT_TRUE(desk.Settled()) << "there are no weights yet";
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = desk.Join(8);
  ThrowIfError(desk.Serve(worker, 1));
  const auto given = desk.Assign().at(worker);
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].until, kToTheEnd);
  EXPECT_EQ(given[1].until, 2);
  EXPECT_TRUE(
      ValueOrThrow(desk.Finish(worker, given[0].lease, FinishedOf({0, 0}, {1, 2}, {{0, 1}}))));
  EXPECT_FALSE(desk.Settled());
  EXPECT_TRUE(ValueOrThrow(desk.Progress(worker, given[1].lease, 0, {{3, 4}, {}, {{0, 1}}})));
  EXPECT_TRUE(desk.Settled());
  EXPECT_TRUE(ValueOrThrow(desk.GiveBack(worker, given[1].lease)));
  EXPECT_FALSE(ValueOrThrow(desk.GiveBack(worker, given[1].lease))) << "its lease is over";
  EXPECT_TRUE(desk.Assign().empty());
  desk.Take();
  ThrowIfError(desk.Publish(2, 1));
  ThrowIfError(desk.Serve(worker, 2));
  const auto rest = desk.Assign().at(worker);
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].so_far.tokens, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(rest[0].until, kToTheEnd);
  EXPECT_TRUE(
      ValueOrThrow(desk.Finish(worker, rest[0].lease, FinishedOf({1, 0}, {3, 4, 5}, {{0, 2}}))));
  EXPECT_EQ(desk.Take()[0].spans, (std::vector<VersionSpan>{{0, 1}, {2, 2}}));
}

// With filtered groups a step takes more, and its old weights may then begin what they could not
// before. In the replay they begin it before the next ones are there.
TEST_F(ScheduleTest, WhatOldWeightsBeganWhileAStepTookMoreIsBegunByThem) {
  ThrowIfError(RecordStep(
      folder_, 1,
      {RecordOf(FinishedOf({0, 0}, {1}, {{0, 1}})), RecordOf(FinishedOf({1, 0}, {2}, {{0, 1}}))}));
  ThrowIfError(RecordStep(
      folder_, 2,
      {RecordOf(FinishedOf({2, 0}, {3}, {{0, 2}})), RecordOf(FinishedOf({3, 0}, {4}, {{0, 1}}))}));
  DeskOptions options;
  options.max_staleness = 1;
  options.schedule = ValueOrThrow(RecordedSchedule::Load(folder_));
  options.schedule_reaches = true;
  options.end = 4;
  DeskProtocol desk = ValueOrThrow(DeskProtocol::Make(options, {}));
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = desk.Join(8);
  ThrowIfError(desk.Serve(worker, 1));
  const auto given = desk.Assign().at(worker);
  ASSERT_EQ(given.size(), 3U) << "0, 1 and 3";
  EXPECT_EQ(given[2].id.position, 3);
  const auto finish = [&](int64_t lease, const SampleId& id, int32_t token, int64_t version) {
    EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, lease, FinishedOf(id, {token}, {{0, version}}))));
  };
  finish(given[0].lease, {0, 0}, 1, 1);
  finish(given[1].lease, {1, 0}, 2, 1);
  EXPECT_FALSE(desk.Settled()) << "newer weights wait for position 3";
  finish(given[2].lease, {3, 0}, 4, 1);
  EXPECT_TRUE(desk.Settled());
  desk.Take();
  ThrowIfError(desk.More());
  desk.Take();
  EXPECT_FALSE(desk.counts().used_up);
  ThrowIfError(desk.Publish(2, 1));
  ThrowIfError(desk.Serve(worker, 2));
  const auto rest = desk.Assign().at(worker);
  ASSERT_EQ(rest.size(), 1U);
  finish(rest[0].lease, {2, 0}, 3, 2);
  desk.Take();
  ThrowIfError(desk.More());
  EXPECT_EQ(desk.Take().size(), 1U);
  EXPECT_TRUE(desk.counts().used_up) << "a step more has nothing to take";
}

TEST_F(ScheduleTest, OneThatCannotBeKeptIsAnError) {
  ThrowIfError(RecordStep(folder_, 1,
                          {RecordOf(FinishedOf({0, 0}, {1, 2}, {{0, 1}})),
                           RecordOf(FinishedOf({1, 0}, {1, 2}, {{0, 1}}))}));
  DeskOptions options;  // recorded with max_staleness 1
  options.schedule = ValueOrThrow(RecordedSchedule::Load(folder_));
  DeskProtocol desk = ValueOrThrow(DeskProtocol::Make(options, {}));
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = desk.Join(8);
  ThrowIfError(desk.Serve(worker, 1));
  const auto given = desk.Assign().at(worker);
  ASSERT_EQ(given.size(), 1U);
  EXPECT_TRUE(
      ValueOrThrow(desk.Finish(worker, given[0].lease, FinishedOf({0, 0}, {1, 2}, {{0, 1}}))));
  desk.Take();
  EXPECT_THAT(desk.Publish(2, 1).message(),
              HasSubstr("wants version 1 for sample 0 of position 1"));
}

// It waited for ever for weights that the very step makes which was to train the sample.
TEST_F(ScheduleTest, OneThatWantsWeightsWhichComeTooLateIsAnError) {
  // Two steps of a position each; the second begins with the first's weights.
  ThrowIfError(RecordStep(folder_, 1, {RecordOf(FinishedOf({0, 0}, {1, 2}, {{0, 1}}))}));
  ThrowIfError(RecordStep(folder_, 2, {RecordOf(FinishedOf({1, 0}, {3, 4}, {{0, 1}, {1, 2}}))}));
  DeskOptions options;
  options.max_staleness = 1;
  options.end = 2;
  options.schedule = ValueOrThrow(RecordedSchedule::Load(folder_));
  const std::string wrong = "wants version 2 for sample 0 of position 1";
  DeskProtocol same = ValueOrThrow(DeskProtocol::Make(options, {}));
  ThrowIfError(same.Publish(1, 0));

  options.batch = 2;
  DeskProtocol other = ValueOrThrow(DeskProtocol::Make(options, {}));
  const Status status = other.Publish(1, 0);
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_THAT(status.message(), HasSubstr(wrong));
  // Also of a start that goes on from such a moment.
  Ledger ledger;
  ledger.versions = {{1, 0}};
  EXPECT_THAT(DeskProtocol::Make(options, ledger).status().message(), HasSubstr(wrong));

  // And where a step, which filters, takes one position more.
  options.batch = 1;
  options.schedule_reaches = true;
  DeskProtocol filters = ValueOrThrow(DeskProtocol::Make(options, {}));
  ThrowIfError(filters.Publish(1, 0));
  const int64_t worker = filters.Join(8);
  ThrowIfError(filters.Serve(worker, 1));
  const auto given = filters.Assign().at(worker);
  EXPECT_TRUE(
      ValueOrThrow(filters.Finish(worker, given[0].lease, FinishedOf({0, 0}, {1, 2}, {{0, 1}}))));
  filters.Take();
  EXPECT_THAT(filters.More().message(), HasSubstr(wrong));
}

}  // namespace
}  // namespace keel::trainer::desk
