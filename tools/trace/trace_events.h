// A run's spans as Chrome's trace events, which Perfetto and chrome://tracing read. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "tools/trace/trace_reader.h"

namespace keel::tools {

// The first and the last step; both are in it.
using StepRange = std::pair<int64_t, int64_t>;
// "7" or "3:8"; kUsage otherwise.
Result<StepRange> ParseStepRange(const std::string& text);

inline constexpr std::string_view kTraceBegins =
    R"({"displayTimeUnit":"ms","otherData":{"origin_unix_ns":)";

// One JSON object: `traceEvents` has a process per rank, a thread per lane, and a complete event
// (ph X) per span; times are microseconds since the reader's origin, exact to the nanosecond.
// Returns how many spans were written, and of which steps.
struct WrittenEvents {
  int64_t spans = 0;
  int64_t first_step = 0, last_step = 0;
};
Result<WrittenEvents> WriteTraceEvents(TraceReader& reader, const std::optional<StepRange>& steps,
                                       std::ostream& out);

}  // namespace keel::tools
