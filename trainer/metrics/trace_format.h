// The lines of trace/rank_<N>.jsonl in a run's folder (docs/formats/trace.md), written and read.
// Pure, torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/span_recorder.h"
#include "common/status.h"

namespace keel::trainer {

inline constexpr std::string_view kTraceFolder = "trace";
std::string TraceFileName(int rank);     // "rank_3.jsonl"
std::string OldTraceFileName(int rank);  // "rank_3.old.jsonl", with what came before
std::optional<int> RankOfTraceFile(const std::string& name);  // 3 of either

// Who writes, and what its clock says. It stands at each start of a rank, and where a file begins.
struct TraceHeader {
  int rank = 0, world = 1;
  int tp = 0, dp = 0, pp = 0;  // its place
  std::string role;            // of a rank that does not train, what it does
  std::string host, boot;      // of one `boot` the monotonic clock is one
  int64_t pid = 0;
  int64_t start = 0;                      // of the job's ranks: the same of all that began together
  int64_t unix_ns = 0, monotonic_ns = 0;  // both clocks at one moment
  std::vector<int64_t> meetings_ns;  // when it left barriers of all ranks, by the monotonic one
};

// A span as it was read.
struct TracedSpan {
  std::string name;
  int lane = 0;
  int64_t begin_ns = 0, duration_ns = 0;
  int64_t step = 0;
  int64_t microbatch = -1, stage = -1;
};

struct DroppedSpans {
  int64_t count = 0;
};

// With their end of line.
std::string HeaderLine(const TraceHeader& header);
void AppendSpanLine(const Span& span, std::string* out);
std::string DroppedLine(int64_t count);

using TraceLine = std::variant<TraceHeader, TracedSpan, DroppedSpans>;
// Without its end of line. kInvalidData where it is no such line: torn, or of another version.
Result<TraceLine> ParseTraceLine(std::string_view line);

}  // namespace keel::trainer
