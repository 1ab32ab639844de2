#include "tools/trace/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "common/json.h"
#include "common/span_recorder.h"

namespace keel::tools {

namespace {

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Nanoseconds as microseconds: a double would lose what a day of nanoseconds has.
std::string Microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string Meta(int rank, int lane, const char* name, const std::string& value) {
  return fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})", rank, lane,
                     name, value);
}

}  // namespace

Result<StepRange> ParseStepRange(const std::string& text) {
  StepRange range;
  const size_t colon = text.find(':');
  const auto number = [](std::string_view digits, int64_t* to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *to);
    return error == std::errc() && end == digits.data() + digits.size() && *to >= 0;
  };
  const std::string_view all = text;
  const bool valid = colon == std::string::npos
                         ? number(all, &range.first) && number(all, &range.second)
                         : number(all.substr(0, colon), &range.first) &&
                               number(all.substr(colon + 1), &range.second);
  if (valid && range.first <= range.second) return range;
  return Status(
      StatusCode::kUsage,
      fmt::format("--steps {}: expected a step, 7, or the first and the last, 3:8", text));
}

Result<WrittenEvents> WriteTraceEvents(TraceReader& reader, const std::optional<StepRange>& steps,
                                       std::ostream& out) {
  WrittenEvents written;
  out << R"({"displayTimeUnit":"ms","otherData":{"origin_unix_ns":)" << reader.origin_ns()
      << "},\"traceEvents\":[\n";
  bool first = true;
  const auto event = [&](const std::string& text) {
    if (!first) out << ",\n";
    first = false;
    out << text;
  };
  for (const auto& [rank, header] : reader.ranks()) {
    event(Meta(rank, 0, "process_name",
               "\"name\":" + Quoted(fmt::format("rank {}: tp {}, dp {}, pp {}, on {}", rank,
                                                header.tp, header.dp, header.pp, header.host))));
    event(Meta(rank, 0, "process_sort_index", fmt::format("\"sort_index\":{}", rank)));
    for (size_t lane = 0; lane < kSpanLanes.size(); ++lane)
      event(Meta(rank, static_cast<int>(lane), "thread_name",
                 "\"name\":" + Quoted(std::string(kSpanLanes[lane]))));
    KEEL_RETURN_IF_ERROR(reader.Each(rank, [&](const trainer::TracedSpan& span, int64_t begin_ns) {
      if (steps && (span.step < steps->first || span.step > steps->second)) return;
      written.first_step = written.spans == 0 ? span.step : std::min(written.first_step, span.step);
      written.last_step = std::max(written.last_step, span.step);
      ++written.spans;
      std::string args = fmt::format("\"step\":{}", span.step);
      if (span.microbatch >= 0)
        args += fmt::format(",\"microbatch\":{},\"stage\":{}", span.microbatch, span.stage);
      event(fmt::format(
          R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})",
          rank, span.lane, Microseconds(begin_ns), Microseconds(span.duration_ns),
          Quoted(span.name), kSpanLanes[static_cast<size_t>(span.lane)], args));
    }));
  }
  out << "\n]}\n";
  out.flush();
  if (!out) return Status(StatusCode::kIo, "the events cannot be written");
  return written;
}

}  // namespace keel::tools
