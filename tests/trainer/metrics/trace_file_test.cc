#include "trainer/metrics/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace keel::trainer {
namespace {

TraceHeader Header() {
  TraceHeader header;
  header.rank = 3;
  header.world = 4;
  header.pp = 1;
  header.host = "node\x01\xff";  // whatever a machine is called
  header.boot = "b";
  header.start = 5;
  header.unix_ns = 1'700'000'000'000'000'000;
  header.monotonic_ns = 12;
  header.meetings_ns = {1, 2, 3};
  return header;
}

TEST(TraceFormatTest, LinesAreReadAsTheyWereWritten) {
  std::string text = HeaderLine(Header());
  AppendSpanLine({"forward, backward", SpanLane::kTrain, 10, 15, 7, -1, -1}, &text);
  AppendSpanLine({"forward", SpanLane::kSaver, 20, 20, 8, 0, 1}, &text);
  AppendSpanLine({"write", WriterLane(2), 1, 2, 8, -1, -1}, &text);
  text += DroppedLine(9);
  TraceHeader generates = Header();
  generates.role = "generates";
  text += HeaderLine(generates);
  std::vector<TraceLine> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    lines.push_back(ValueOrThrow(ParseTraceLine(line)));
  ASSERT_EQ(lines.size(), 6u);
  const auto& header = std::get<TraceHeader>(lines[0]);
  EXPECT_EQ(header.rank, 3);
  EXPECT_EQ(header.pp, 1);
  EXPECT_EQ(header.role, "");
  EXPECT_EQ(header.unix_ns, 1'700'000'000'000'000'000);
  EXPECT_EQ(header.meetings_ns, (std::vector<int64_t>{1, 2, 3}));
  const auto& span = std::get<TracedSpan>(lines[1]);
  EXPECT_EQ(span.name, "forward, backward");
  EXPECT_EQ(span.begin_ns, 10);
  EXPECT_EQ(span.duration_ns, 5);
  EXPECT_EQ(span.microbatch, -1);
  const auto& micro = std::get<TracedSpan>(lines[2]);
  EXPECT_EQ(micro.lane, 1);
  EXPECT_EQ(micro.microbatch, 0);
  EXPECT_EQ(micro.stage, 1);
  EXPECT_EQ(LaneName(std::get<TracedSpan>(lines[3]).lane), "saver: writer 2");
  EXPECT_EQ(std::get<DroppedSpans>(lines[4]).count, 9);
  EXPECT_EQ(std::get<TraceHeader>(lines[5]).role, "generates");
}

// A reader adds times to each other: none may be so large that this overflows.
TEST(TraceFormatTest, StrangeLinesAreRefused) {
  for (const char* const line :
       {"", "[", "[]", "{}", "7", "null", R"(["a",0,1,2])", R"(["a",0,1,2,3,4])",
        R"(["a",256,1,2,3])", R"(["a",0,-1,2,3])", R"(["a",0,1,9223372036854775807,3])",
        R"(["a",0,18446744073709551615,2,3])", R"(["a",0,1.5,2,3])", R"([1,0,1,2,3])",
        R"({"dropped":-1})", R"({"keel_trace":2})", R"({"keel_trace":1,"rank":0})"})
    EXPECT_EQ(ParseTraceLine(line).status().code(), StatusCode::kInvalidData) << line;
  EXPECT_FALSE(ParseTraceLine("[\"" + std::string(1000, 'x') + "\",0,1,2,3]").ok());
  // A line that is torn anywhere is no line.
  std::string whole = HeaderLine(Header());
  whole.pop_back();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(ParseTraceLine(std::string_view(whole).substr(0, size)).ok()) << size;
}

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-trace-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    recorder_.SetStep(1, true);
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name = "rank_3.jsonl") const {
    return folder_ + "/trace/" + name;
  }
  std::vector<std::string> Lines(const std::string& path) const {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  TraceFile Open(int64_t resumed_step, int64_t most_bytes = 1 << 20) {
    return ValueOrThrow(TraceFile::Open(folder_, Header(), resumed_step, most_bytes, log_));
  }
  void Record(int count) {
    for (int i = 0; i < count; ++i) const ScopedSpan span(&recorder_, "forward");
  }

  std::string folder_;
  Logger log_{LogOptions{}};
  SpanRecorder recorder_{1000};
};

TEST_F(TraceFileTest, AResumedRunAddsToItAndOneThatBeginsAnewDoesNot) {
  {
    TraceFile file = Open(0);
    Record(2);
    file.Write(1, recorder_);
    file.Write(2, recorder_);  // nothing since
  }
  EXPECT_EQ(Lines(Path()).size(), 3u);
  Open(1);
  EXPECT_EQ(Lines(Path()).size(), 4u);
  Open(0);
  EXPECT_EQ(Lines(Path()).size(), 1u);
}

// Of ranks that are no more it is rank 0 that removes what they left.
TEST_F(TraceFileTest, OfARunThatBeginsAnewNothingOfAnotherStays) {
  const std::set<std::string> all = {"rank_0.jsonl",     "rank_0.old.jsonl", "rank_3.jsonl",
                                     "rank_3.old.jsonl", "rank_4.jsonl",     "rank_12.old.jsonl",
                                     "rank_x.jsonl"};
  const auto after = [&](int rank, int64_t resumed_step) {
    const std::filesystem::path trace = std::filesystem::path(folder_) / "trace";
    std::filesystem::remove_all(trace);
    std::filesystem::create_directories(trace);
    for (const std::string& name : all) std::ofstream(trace / name) << "{}\n";
    TraceHeader header = Header();
    header.rank = rank;
    (void)ValueOrThrow(TraceFile::Open(folder_, header, resumed_step, 1 << 20, log_));
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(trace))
      left.insert(entry.path().filename());
    return left;
  };
  // Of four ranks, 0 and 3; each begins its own file again.
  EXPECT_EQ(after(0, 0), (std::set<std::string>{"rank_0.jsonl", "rank_3.jsonl", "rank_3.old.jsonl",
                                                "rank_x.jsonl"}));
  EXPECT_EQ(after(3, 0),
            (std::set<std::string>{"rank_0.jsonl", "rank_0.old.jsonl", "rank_3.jsonl",
                                   "rank_4.jsonl", "rank_12.old.jsonl", "rank_x.jsonl"}));
  for (const int rank : {0, 3}) EXPECT_EQ(after(rank, 5), all);
}

TEST_F(TraceFileTest, ALineThatAKilledProcessToreSpoilsNoOther) {
  {
    TraceFile file = Open(0);
    Record(1);
    file.Write(1, recorder_);
  }
  std::filesystem::resize_file(Path(), std::filesystem::file_size(Path()) - 5);
  Open(1);
  const auto lines = Lines(Path());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(ParseTraceLine(lines[0]).ok());
  EXPECT_FALSE(ParseTraceLine(lines[1]).ok());
  EXPECT_TRUE(ParseTraceLine(lines[2]).ok());
}

TEST_F(TraceFileTest, TheNewestHalfStaysWithinTheBound) {
  constexpr int64_t kMost = 20'000;
  TraceFile file = Open(0, kMost);
  for (int64_t step = 1; step <= 200; ++step) {
    recorder_.SetStep(step, true);
    Record(10);
    file.Write(step, recorder_);
    const auto size = [&](const std::string& name) {
      return std::filesystem::exists(Path(name))
                 ? static_cast<int64_t>(std::filesystem::file_size(Path(name)))
                 : 0;
    };
    // A step's spans come whole.
    EXPECT_LT(size("rank_3.jsonl") + size("rank_3.old.jsonl"), kMost + 2 * 1000);
  }
  std::vector<std::string> lines = Lines(Path("rank_3.old.jsonl"));
  EXPECT_TRUE(std::holds_alternative<TraceHeader>(ValueOrThrow(ParseTraceLine(lines.front()))));
  lines = Lines(Path());
  EXPECT_TRUE(std::holds_alternative<TraceHeader>(ValueOrThrow(ParseTraceLine(lines.front()))));
  EXPECT_EQ(std::get<TracedSpan>(ValueOrThrow(ParseTraceLine(lines.back()))).step, 200);
}

TEST_F(TraceFileTest, WhatHadNoRoomIsCounted) {
  TraceFile file = Open(0);
  Record(1003);
  file.Write(1, recorder_);
  EXPECT_EQ(Lines(Path()).size(), 1u + 1000 + 1);
  EXPECT_EQ(Lines(Path()).back(), "{\"dropped\":3}");
}

}  // namespace
}  // namespace keel::trainer
