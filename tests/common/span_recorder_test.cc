#include "common/span_recorder.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace keel {
namespace {

class TickingClock final : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return std::chrono::nanoseconds(++now); }
  std::chrono::system_clock::time_point Wall() const override { return {}; }
  void SleepFor(std::chrono::nanoseconds) const override {}
  mutable int64_t now = 0;
};

TEST(SpanRecorderTest, SpansEndInsideOutAndSayWhatTheyAreOf) {
  TickingClock clock;
  SpanRecorder recorder(10, clock);
  recorder.SetStep(7, true);
  {
    const ScopedSpan outer(&recorder, "outer");
    const ScopedSpan inner(&recorder, "inner", {.microbatch = 2, .stage = 1});
    ScopedSpan saver(&recorder, "save", {.lane = SpanLane::kSaver, .step = 4});
    saver.End();
    saver.End();  // once is enough
  }
  const auto [spans, dropped] = recorder.Take();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(dropped, 0);
  EXPECT_EQ(std::string(spans[0].name), "save");
  EXPECT_EQ(spans[0].lane, SpanLane::kSaver);
  EXPECT_EQ(spans[0].step, 4);
  EXPECT_EQ(std::string(spans[1].name), "inner");
  EXPECT_EQ(spans[1].step, 7);
  EXPECT_EQ(spans[1].microbatch, 2);
  EXPECT_EQ(spans[1].stage, 1);
  EXPECT_EQ(std::string(spans[2].name), "outer");
  EXPECT_EQ(spans[2].microbatch, -1);
  EXPECT_LT(spans[2].begin_ns, spans[1].begin_ns);
  EXPECT_LT(spans[1].end_ns, spans[2].end_ns);
  EXPECT_TRUE(recorder.Take().first.empty());
}

TEST(SpanLaneTest, EveryLaneHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int lane = 0; lane < kMostSpanLanes; ++lane) names.insert(LaneName(lane));
  EXPECT_EQ(names.size(), static_cast<size_t>(kMostSpanLanes));
  EXPECT_EQ(LaneName(static_cast<int>(WriterLane(0))), "saver: writer 0");
  EXPECT_EQ(static_cast<int>(WriterLane(100'000)), kMostSpanLanes - 1);
}

TEST(SpanRecorderTest, WhereNothingIsRecordedNoClockIsRead) {
  TickingClock clock;
  SpanRecorder recorder(10, clock);
  { const ScopedSpan nowhere(nullptr, "span"); }
  { const ScopedSpan inactive(&recorder, "span"); }
  EXPECT_EQ(clock.now, 0);
  EXPECT_TRUE(recorder.Take().first.empty());
  // What began while it was recorded ends so.
  recorder.SetStep(1, true);
  {
    const ScopedSpan span(&recorder, "span");
    recorder.SetStep(2, false);
  }
  EXPECT_EQ(recorder.Take().first.size(), 1u);
}

TEST(SpanRecorderTest, WhatNobodyTakesIsBoundedAndCounted) {
  SpanRecorder recorder(3);
  recorder.SetStep(1, true);
  for (int i = 0; i < 5; ++i) const ScopedSpan span(&recorder, "span");
  const auto [spans, dropped] = recorder.Take();
  EXPECT_EQ(spans.size(), 3u);
  EXPECT_EQ(dropped, 2);
  EXPECT_EQ(recorder.Take().second, 0);
}

TEST(SpanRecorderTest, ThreadsRecordBesideEachOther) {
  constexpr int kEach = 2000;
  SpanRecorder recorder;
  recorder.SetStep(1, true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&recorder] {
      for (int i = 0; i < kEach; ++i) const ScopedSpan span(&recorder, "span");
    });
  size_t taken = 0;
  while (taken < 4 * kEach) {
    taken += recorder.Take().first.size();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, size_t{4} * kEach);
  EXPECT_TRUE(recorder.Take().first.empty());
}

}  // namespace
}  // namespace keel
