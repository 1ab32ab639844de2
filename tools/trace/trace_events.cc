#include "tools/trace/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
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

std::string ProcessName(const trainer::TraceHeader& header) {
  if (!header.role.empty())
    return fmt::format("rank {}: {}, on {}", header.rank, header.role, header.host);
  return fmt::format("rank {}: tp {}, dp {}, pp {}, on {}", header.rank, header.tp, header.dp,
                     header.pp, header.host);
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
  out << kTraceBegins << reader.origin_ns() << "},\"traceEvents\":[\n";
  bool first = true;
  int failure = 0;  // errno, as it was when the stream first failed
  const auto event = [&](const std::string& text) {
    if (failure != 0) return;
    errno = 0;
    if (!first) out << ",\n";
    first = false;
    out << text;
    if (!out) failure = errno == 0 ? EIO : errno;
  };
  for (const auto& [rank, header] : reader.ranks()) {
    event(Meta(rank, 0, "process_name", "\"name\":" + Quoted(ProcessName(header))));
    event(Meta(rank, 0, "process_sort_index", fmt::format("\"sort_index\":{}", rank)));
    std::set<int> lanes;
    KEEL_RETURN_IF_ERROR(reader.Each(rank, [&](const trainer::TracedSpan& span, int64_t begin_ns) {
      if (steps && (span.step < steps->first || span.step > steps->second)) return;
      written.first_step = written.spans == 0 ? span.step : std::min(written.first_step, span.step);
      written.last_step = std::max(written.last_step, span.step);
      ++written.spans;
      if (lanes.insert(span.lane).second) {
        event(Meta(rank, span.lane, "thread_name", "\"name\":" + Quoted(LaneName(span.lane))));
        event(Meta(rank, span.lane, "thread_sort_index",
                   fmt::format("\"sort_index\":{}", span.lane)));
      }
      std::string args = fmt::format("\"step\":{}", span.step);
      if (span.microbatch >= 0)
        args += fmt::format(",\"microbatch\":{},\"stage\":{}", span.microbatch, span.stage);
      event(fmt::format(
          R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})",
          rank, span.lane, Microseconds(begin_ns), Microseconds(span.duration_ns),
          Quoted(span.name), LaneName(span.lane), args));
    }));
  }
  errno = 0;
  out << "\n]}\n";
  out.flush();
  if (!out && failure == 0) failure = errno == 0 ? EIO : errno;
  if (failure != 0) return Status::FromErrno(failure, "write", "the events");
  return written;
}

}  // namespace keel::tools
