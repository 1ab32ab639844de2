#include "trainer/metrics/trace_format.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <system_error>

#include "common/json.h"

namespace keel::trainer {

namespace {

constexpr int kVersion = 1;
// Times that a reader adds to each other stay far from the ends of int64: 73 years since 1970, 36
// since a machine was started.
constexpr int64_t kMostUnix_ns = int64_t{1} << 61, kMostMonotonic_ns = int64_t{1} << 60;
constexpr size_t kMostMeetings = 1000, kLongestName = 200;
constexpr int64_t kMostRanks = int64_t{1} << 24;

Status Strange(std::string_view what) {
  return Status(StatusCode::kInvalidData, fmt::format("no line of a trace: {}", what));
}

// The number of a member, or of an item; nothing where it is none in [low, high].
template <typename Key>
bool Take(const Json& json, const Key& key, int64_t low, int64_t high, int64_t* value) {
  const Json& item = json.at(key);
  if (!item.is_number_integer() ||
      (item.is_number_unsigned() && item.get<uint64_t>() > static_cast<uint64_t>(high)))
    return false;
  *value = item.get<int64_t>();
  return *value >= low && *value <= high;
}

Result<TraceLine> ParseHeader(const Json& json) {
  for (const char* const key : {"rank", "world", "tp", "dp", "pp", "host", "boot", "pid", "start",
                                "unix_ns", "monotonic_ns", "meetings_ns"})
    if (!json.contains(key)) return Strange("a header lacks a member");
  TraceHeader header;
  const auto number = [&](const char* key, int64_t high, auto* to) {
    int64_t value = 0;
    const bool there = Take(json, key, 0, high, &value);
    *to = static_cast<std::remove_pointer_t<decltype(to)>>(value);
    return there;
  };
  const bool whole =
      number("rank", kMostRanks, &header.rank) && number("world", kMostRanks, &header.world) &&
      number("tp", kMostRanks, &header.tp) && number("dp", kMostRanks, &header.dp) &&
      number("pp", kMostRanks, &header.pp) && number("pid", kMostUnix_ns, &header.pid) &&
      number("start", kMostUnix_ns, &header.start) &&
      number("unix_ns", kMostUnix_ns, &header.unix_ns) &&
      number("monotonic_ns", kMostMonotonic_ns, &header.monotonic_ns);
  const Json& meetings = json["meetings_ns"];
  if (!whole || !json["host"].is_string() || !json["boot"].is_string() || !meetings.is_array() ||
      meetings.size() > kMostMeetings)
    return Strange("a header's member is none");
  if (json.contains("role")) {
    if (!json["role"].is_string()) return Strange("a header's role is none");
    header.role = json["role"].get<std::string>();
  }
  header.host = json["host"].get<std::string>();
  header.boot = json["boot"].get<std::string>();
  for (size_t i = 0; i < meetings.size(); ++i) {
    int64_t at = 0;
    if (!Take(meetings, i, 0, kMostMonotonic_ns, &at)) return Strange("a header's meeting is none");
    header.meetings_ns.push_back(at);
  }
  return TraceLine(std::move(header));
}

Result<TraceLine> ParseSpan(const Json& json) {
  if ((json.size() != 5 && json.size() != 7) || !json[0].is_string() ||
      json[0].get_ref<const std::string&>().size() > kLongestName)
    return Strange("a span has a name, and four or six numbers");
  TracedSpan span;
  span.name = json[0].get<std::string>();
  int64_t lane = 0;
  bool whole = Take(json, 1, 0, kMostSpanLanes - 1, &lane) &&
               Take(json, 2, 0, kMostMonotonic_ns, &span.begin_ns) &&
               Take(json, 3, 0, kMostMonotonic_ns, &span.duration_ns) &&
               Take(json, 4, 0, kMostUnix_ns, &span.step);
  if (json.size() == 7) {
    whole = whole && Take(json, 5, 0, kMostRanks, &span.microbatch) &&
            Take(json, 6, 0, kMostRanks, &span.stage);
  }
  if (!whole) return Strange("a span's number is none");
  span.lane = static_cast<int>(lane);
  return TraceLine(std::move(span));
}

}  // namespace

std::string TraceFileName(int rank) { return fmt::format("rank_{}.jsonl", rank); }
std::string OldTraceFileName(int rank) { return fmt::format("rank_{}.old.jsonl", rank); }

std::optional<int> RankOfTraceFile(const std::string& name) {
  constexpr std::string_view kBegin = "rank_";
  if (!name.starts_with(kBegin)) return std::nullopt;
  int rank = -1;
  const auto [end, error] =
      std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), rank);
  if (error != std::errc() || rank < 0) return std::nullopt;
  const bool ours = name == TraceFileName(rank) || name == OldTraceFileName(rank);
  return ours ? std::optional(rank) : std::nullopt;
}

std::string HeaderLine(const TraceHeader& header) {
  Json json = {{"keel_trace", kVersion},
               {"rank", header.rank},
               {"world", header.world},
               {"tp", header.tp},
               {"dp", header.dp},
               {"pp", header.pp},
               {"host", header.host},
               {"boot", header.boot},
               {"pid", header.pid},
               {"start", header.start},
               {"unix_ns", header.unix_ns},
               {"monotonic_ns", header.monotonic_ns},
               {"meetings_ns", header.meetings_ns}};
  if (!header.role.empty()) json["role"] = header.role;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void AppendSpanLine(const Span& span, std::string* out) {
  auto end = std::back_inserter(*out);
  fmt::format_to(end, "[\"{}\",{},{},{},{}", span.name, static_cast<int>(span.lane), span.begin_ns,
                 span.end_ns - span.begin_ns, span.step);
  if (span.microbatch >= 0) fmt::format_to(end, ",{},{}", span.microbatch, span.stage);
  out->append("]\n");
}

std::string DroppedLine(int64_t count) { return fmt::format("{{\"dropped\":{}}}\n", count); }

Result<TraceLine> ParseTraceLine(std::string_view line) {
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(line, "a line of a trace"));
  if (json.is_array()) return ParseSpan(json);
  if (!json.is_object()) return Strange("neither an object nor an array");
  if (json.contains("dropped")) {
    DroppedSpans dropped;
    if (!Take(json, "dropped", 0, kMostUnix_ns, &dropped.count)) return Strange("no count");
    return TraceLine(dropped);
  }
  int64_t version = 0;
  if (!json.contains("keel_trace") || !Take(json, "keel_trace", 1, kMostRanks, &version))
    return Strange("keel_trace is no version");
  if (version != kVersion)
    return Strange(
        fmt::format("keel_trace is {}, this build reads {}: it is of a newer build of "
                    "Keel, which reads it",
                    version, kVersion));
  return ParseHeader(json);
}

}  // namespace keel::trainer
