#include "tools/trace/trace_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/json.h"

namespace keel::tools {
namespace {

using trainer::TraceHeader;

TraceHeader Header(int rank, const std::string& boot, int64_t start = 1) {
  TraceHeader header;
  header.rank = rank;
  header.world = 3;
  header.host = "host";
  header.boot = boot;
  header.start = start;
  header.unix_ns = 1'000'000 + rank;
  header.monotonic_ns = 500;
  return header;
}

TEST(AlignClocksTest, RanksOfOneMachineShareItsClock) {
  std::vector<TraceHeader> headers = {Header(1, "a"), Header(0, "a")};
  headers[0].unix_ns += 777;  // read later, or set meanwhile
  const auto shifts = AlignClocks(headers);
  EXPECT_EQ(shifts.at(0).source, ClockSource::kOwn);
  EXPECT_EQ(shifts.at(0).shift_ns, 1'000'000 - 500);
  EXPECT_EQ(shifts.at(1).source, ClockSource::kMachine);
  EXPECT_EQ(shifts.at(1).shift_ns, shifts.at(0).shift_ns);
}

TEST(AlignClocksTest, OtherMachinesAreAlignedByTheBarriersThatTheyLeftTogether) {
  std::vector<TraceHeader> headers = {Header(0, "a"), Header(1, "b"), Header(2, "")};
  headers[0].meetings_ns = {1000, 2000, 3000};
  headers[1].meetings_ns = {90'000'005, 90'001'010, 90'002'500};  // the last one was late
  headers[1].unix_ns = 5;                                         // its wall clock is wrong
  const auto shifts = AlignClocks(headers);
  EXPECT_EQ(shifts.at(1).source, ClockSource::kMeetings);
  EXPECT_EQ(90'001'010 + shifts.at(1).shift_ns, 2000 + shifts.at(0).shift_ns);
  EXPECT_EQ(shifts.at(1).spread_ns, 495);
  // Who met nobody has its wall clock.
  EXPECT_EQ(shifts.at(2).source, ClockSource::kWall);
  EXPECT_EQ(shifts.at(2).shift_ns, 1'000'002 - 500);
}

// Ranks that begin by themselves, as those do that generate or are started again.
TEST(ClockTableTest, AMachineThatIsKnownPlacesALaterStart) {
  ClockTable clocks;
  TraceHeader far = Header(1, "b");
  far.meetings_ns = {7'000};
  TraceHeader near = Header(0, "a");
  near.meetings_ns = {1'000};
  const auto first = clocks.Add({near, far});
  EXPECT_EQ(first.at(1).source, ClockSource::kMeetings);
  // Its wall clock was set meanwhile; its monotonic one was not.
  TraceHeader later = Header(4, "b", 2);
  later.unix_ns += 5'000'000;
  const auto second = clocks.Add({later});
  EXPECT_EQ(second.at(4).source, ClockSource::kMachine);
  EXPECT_EQ(second.at(4).shift_ns, first.at(1).shift_ns);
  // One of a machine that is new is placed by whom it has met.
  TraceHeader again = Header(0, "a", 3), elsewhere = Header(1, "c", 3);
  again.unix_ns += 9'000'000;
  again.meetings_ns = {2'000};
  elsewhere.meetings_ns = {2'500};
  const auto third = clocks.Add({again, elsewhere});
  EXPECT_EQ(third.at(0).shift_ns, first.at(0).shift_ns);
  EXPECT_EQ(third.at(1).source, ClockSource::kMeetings);
  EXPECT_EQ(2'500 + third.at(1).shift_ns, 2'000 + first.at(0).shift_ns);
  // One that met nobody, on a machine that nobody else was on.
  const auto fourth = clocks.Add({Header(5, "d", 4)});
  EXPECT_EQ(fourth.at(5).source, ClockSource::kWall);
  EXPECT_EQ(fourth.at(5).shift_ns, 1'000'005 - 500);
}

TEST(StepRangeTest, AStepOrTheFirstAndTheLast) {
  EXPECT_EQ(ValueOrThrow(ParseStepRange("7")), StepRange(7, 7));
  EXPECT_EQ(ValueOrThrow(ParseStepRange("3:8")), StepRange(3, 8));
  for (const char* const text : {"", ":", "3:", ":8", "8:3", "-1", "1:2:3", "x", "1.5", " 1"})
    EXPECT_EQ(ParseStepRange(text).status().code(), StatusCode::kUsage) << text;
}

class TraceEventsTest : public ::testing::Test {
 protected:
  TraceEventsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-events-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    std::filesystem::create_directory(folder_ + "/trace");
  }
  ~TraceEventsTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/trace/" + name) << text;
  }
  static std::string SpanLine(const char* name, int64_t begin, int64_t end, int64_t step,
                              int microbatch = -1) {
    std::string line;
    trainer::AppendSpanLine({name, SpanLane::kTrain, begin, end, step, microbatch, 1}, &line);
    return line;
  }
  // The spans as "rank name ts dur".
  std::vector<std::string> Spans(const std::optional<StepRange>& steps = std::nullopt) {
    reader_ = ValueOrThrow(TraceReader::Open(folder_));
    std::ostringstream out;
    ValueOrThrow(WriteTraceEvents(*reader_, steps, out));
    const Json trace = ValueOrThrow(ParseJson(out.str(), "the trace"));
    std::vector<std::string> spans;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      spans.push_back(event["pid"].dump() + " " + event["name"].get<std::string>() + " " +
                      event["ts"].dump() + " " + event["dur"].dump());
    }
    return spans;
  }

  std::string folder_;
  std::optional<TraceReader> reader_;
};

TEST_F(TraceEventsTest, RanksAndStartsStandOnOneAxis) {
  Write("rank_0.old.jsonl", HeaderLine(Header(0, "a")) + SpanLine("step", 1500, 4500, 1));
  Write("rank_0.jsonl", HeaderLine(Header(0, "a")) + SpanLine("step", 5500, 6500, 2, 0));
  // Of another machine, and begun again.
  TraceHeader again = Header(1, "c", 2);
  again.unix_ns = 3'000'000;
  Write("rank_1.jsonl", HeaderLine(Header(1, "a")) + SpanLine("step", 1600, 1601, 1) +
                            HeaderLine(again) + SpanLine("step", 600, 700, 3));
  Write("rank_x.jsonl", "not of a trace");
  EXPECT_THAT(Spans(), ::testing::ElementsAre("0 step 1.0 3.0", "0 step 5.0 1.0",
                                              "1 step 1.1 0.001", "1 step 2000.1 0.1"));
  EXPECT_EQ(reader_->counts().ranks, 2);
  EXPECT_EQ(reader_->counts().torn, 0);
  EXPECT_THAT(Spans(StepRange(2, 3)),
              ::testing::ElementsAre("0 step 5.0 1.0", "1 step 2000.1 0.1"));
}

TEST_F(TraceEventsTest, TornAndStrangeLinesAreLeftOutAndCounted) {
  const std::string last = SpanLine("last", 3000, 3001, 1);
  Write("rank_0.jsonl", HeaderLine(Header(0, "a")) + "[\"torn\",0,15\n\xff\xfe\n" +
                            SpanLine("a", 1500, 1501, 1) + "{\"dropped\":4}\n" +
                            last.substr(0, last.size() - 1));
  EXPECT_THAT(Spans(), ::testing::ElementsAre("0 a 1.0 0.001"));
  EXPECT_EQ(reader_->counts().torn, 3) << "the last line has no end";
  EXPECT_EQ(reader_->counts().dropped, 4);
}

TEST_F(TraceEventsTest, ADamagedFolderIsNotOneWithoutATrace) {
  Write("rank_0.jsonl", "{\"keel_trace\":1,\n" + SpanLine("step", 1500, 4500, 1));
  Write("rank_0.old.jsonl", "\xff\xfe");
  // A file of another rank: whose spans these are nobody knows.
  Write("rank_11.jsonl", HeaderLine(Header(7, "a")) + SpanLine("step", 1500, 4500, 1));
  const Status damaged = TraceReader::Open(folder_).status();
  EXPECT_EQ(damaged.code(), StatusCode::kInvalidData);
  EXPECT_THAT(damaged.message(), ::testing::HasSubstr("every file there is damaged"));
  EXPECT_THAT(damaged.message(),
              ::testing::HasSubstr("rank_0.old.jsonl, rank_0.jsonl, rank_11.jsonl"));
}

TEST_F(TraceEventsTest, RanksThatAreNotThereAreNamed) {
  Write("rank_1.jsonl", HeaderLine(Header(1, "a")) + SpanLine("step", 1500, 4500, 1));
  Write("rank_2.jsonl", "\xff\xfe");
  EXPECT_THAT(Spans(), ::testing::ElementsAre("1 step 1.0 3.0"));
  EXPECT_THAT(reader_->counts().missing, ::testing::ElementsAre(0, 2)) << "of three";
}

TEST_F(TraceEventsTest, ATraceOfANewerBuildIsSaidToBeOne) {
  std::string text = HeaderLine(Header(0, "a"));
  text.replace(text.find(":1,"), 3, ":2,");
  Write("rank_0.jsonl", text + SpanLine("step", 1500, 4500, 1));
  EXPECT_THAT(TraceReader::Open(folder_).status().message(),
              ::testing::HasSubstr("keel_trace is 2, this build reads 1: it is of a newer build"));
}

TEST_F(TraceEventsTest, AFileThatCannotBeReadIsNamed) {
  std::filesystem::create_directory(folder_ + "/trace/rank_0.jsonl");
  const Status unread = TraceReader::Open(folder_).status();
  EXPECT_EQ(unread.code(), StatusCode::kIo);
  EXPECT_THAT(unread.message(), ::testing::HasSubstr("rank_0.jsonl: Is a directory"));
}

TEST_F(TraceEventsTest, SpansBehindADamagedHeaderAreCounted) {
  Write("rank_0.jsonl", SpanLine("lost", 1000, 1001, 1) + SpanLine("lost", 1001, 1002, 1) +
                            HeaderLine(Header(0, "a")) + SpanLine("kept", 1500, 1501, 1));
  EXPECT_THAT(Spans(), ::testing::ElementsAre("0 kept 1.0 0.001"));
  EXPECT_EQ(reader_->counts().unplaced, 2);
  EXPECT_EQ(reader_->counts().torn, 0);
}

TEST_F(TraceEventsTest, AFullDiskIsToldWithItsReason) {
  std::string text = HeaderLine(Header(0, "a"));
  for (int i = 0; i < 5000; ++i) text += SpanLine("step", 1500 + i, 1501 + i, 1);
  Write("rank_0.jsonl", text);
  reader_ = ValueOrThrow(TraceReader::Open(folder_));
  std::ofstream full("/dev/full");
  const Status status = WriteTraceEvents(*reader_, std::nullopt, full).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("No space left on device (errno 28)"));
}

TEST_F(TraceEventsTest, LanesAndRolesHaveNames) {
  TraceHeader generates = Header(3, "a", 2);
  generates.role = "generates";
  std::string line;
  trainer::AppendSpanLine({"generate", SpanLane::kGeneration, 600, 700, 1, -1, -1}, &line);
  trainer::AppendSpanLine({"write", WriterLane(1), 600, 700, 1, -1, -1}, &line);
  Write("rank_3.jsonl", HeaderLine(generates) + line);
  reader_ = ValueOrThrow(TraceReader::Open(folder_));
  std::ostringstream out;
  ValueOrThrow(WriteTraceEvents(*reader_, std::nullopt, out));
  const Json trace = ValueOrThrow(ParseJson(out.str(), "the trace"));
  std::vector<std::string> names;
  for (const Json& event : trace["traceEvents"])
    if (event["args"].contains("name")) names.push_back(event["args"]["name"]);
  EXPECT_THAT(
      names, ::testing::ElementsAre("rank 3: generates, on host", "generation", "saver: writer 1"));
}

TEST_F(TraceEventsTest, AFolderWithoutATraceIsNamed) {
  EXPECT_EQ(TraceReader::Open(folder_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(TraceReader::Open(folder_ + "/nothing").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace keel::tools
