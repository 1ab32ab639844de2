#include "tools/trace/trace_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <variant>

namespace keel::tools {

namespace {

namespace fs = std::filesystem;
using trainer::TraceHeader;

// Lines with an end; what comes after the last one is not whole.
Status EachLine(const std::string& path,
                const std::function<void(std::string_view line, bool whole)>& take) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  // A rank that goes on may have renamed it meanwhile.
  if (!file && errno == ENOENT) return Status::Ok();
  if (!file) return Status::FromErrno(errno, "open", path);
  errno = 0;
  for (std::string line; std::getline(file, line); errno = 0)
    if (!line.empty() || !file.eof()) take(line, !file.eof());
  return file.bad() ? Status::FromErrno(errno == 0 ? EIO : errno, "read", path) : Status::Ok();
}

// Some of the names, and how many there are besides.
std::string Names(const std::vector<std::string>& files) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names;
  for (const std::string& file : files)
    if (names.size() < kMost) names.push_back(fs::path(file).filename());
  const size_t more = files.size() - names.size();
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace

std::map<int, ClockShift> AlignClocks(const std::vector<TraceHeader>& headers) {
  std::map<int, ClockShift> shifts;
  if (headers.empty()) return shifts;
  const TraceHeader& first = *std::ranges::min_element(headers, {}, &TraceHeader::rank);
  const int64_t base = first.unix_ns - first.monotonic_ns;
  for (const TraceHeader& header : headers) {
    ClockShift& shift = shifts[header.rank];
    const size_t met = header.meetings_ns.size();
    if (header.rank == first.rank) {
      shift = {base, ClockSource::kOwn, 0};
    } else if (!header.boot.empty() && header.boot == first.boot) {
      shift = {base, ClockSource::kMachine, 0};
    } else if (met > 0 && met == first.meetings_ns.size()) {
      std::vector<int64_t> behind;
      for (size_t i = 0; i < met; ++i)
        behind.push_back(first.meetings_ns[i] - header.meetings_ns[i]);
      std::ranges::sort(behind);
      shift = {base + behind[met / 2], ClockSource::kMeetings, behind.back() - behind.front()};
    } else {
      shift = {header.unix_ns - header.monotonic_ns, ClockSource::kWall, 0};
    }
  }
  return shifts;
}

std::map<int, ClockShift> ClockTable::Add(const std::vector<TraceHeader>& headers) {
  std::map<int, ClockShift> shifts = AlignClocks(headers);
  // 1. How far off one is whose machine is known: as far as all that were aligned with it.
  const auto known = std::ranges::find_if(
      headers, [&](const TraceHeader& header) { return shifts_ns_.contains(header.boot); });
  const int64_t off =
      known == headers.end() ? 0 : shifts_ns_.at(known->boot) - shifts.at(known->rank).shift_ns;
  for (const TraceHeader& header : headers) {
    ClockShift& shift = shifts.at(header.rank);
    if (const auto machine = shifts_ns_.find(header.boot); machine != shifts_ns_.end()) {
      shift = {machine->second, ClockSource::kMachine, 0};
    } else if (known == headers.end() && begun_) {
      shift.source = ClockSource::kWall;
    } else if (shift.source != ClockSource::kWall) {
      shift.shift_ns += off;
    }
  }
  // 2. What later ones go by.
  for (const TraceHeader& header : headers)
    if (!header.boot.empty()) shifts_ns_.emplace(header.boot, shifts.at(header.rank).shift_ns);
  begun_ = true;
  return shifts;
}

std::vector<std::string> TraceReader::FilesOf(int rank) const {
  std::vector<std::string> files;
  for (const std::string& name : {trainer::OldTraceFileName(rank), trainer::TraceFileName(rank)})
    if (fs::exists(folder_ + "/" + name)) files.push_back(folder_ + "/" + name);
  return files;
}

Result<TraceReader> TraceReader::Open(const std::string& run_folder) {
  TraceReader reader;
  reader.folder_ = run_folder + "/" + std::string(trainer::kTraceFolder);
  std::set<int> found;
  std::error_code error;
  for (fs::directory_iterator at(reader.folder_, error), end; !error && at != end;
       at.increment(error)) {
    if (const auto rank = trainer::RankOfTraceFile(at->path().filename())) found.insert(*rank);
  }
  if (found.empty()) {
    if (error && error != std::errc::no_such_file_or_directory)
      return Status::FromErrno(error.value(), "read", reader.folder_);
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no rank has noted anything there: expected the folder of a run "
                              "with trainer.trace.enable",
                              reader.folder_));
  }
  // 1. Who began when.
  std::map<int64_t, std::vector<TraceHeader>> starts;
  KEEL_RETURN_IF_ERROR(reader.ReadHeaders(found, &starts));
  // 2. Their clocks.
  reader.origin_ns_ = std::numeric_limits<int64_t>::max();
  ClockTable clocks;
  for (const auto& [start, headers] : starts) {
    const std::map<int, ClockShift> shifts = clocks.Add(headers);
    for (const TraceHeader& header : headers) {
      const ClockShift& shift = shifts.at(header.rank);
      reader.shifts_[{header.rank, start}] = shift;
      reader.origin_ns_ = std::min(reader.origin_ns_, header.monotonic_ns + shift.shift_ns);
      reader.counts_.unaligned |= shift.source == ClockSource::kWall;
      reader.counts_.by_meetings |= shift.source == ClockSource::kMeetings;
      reader.counts_.spread_ns = std::max(reader.counts_.spread_ns, shift.spread_ns);
    }
  }
  // 3. Who is not there.
  std::set<int> expected = found;
  for (const auto& [rank, header] : reader.ranks_) {
    if (!header.role.empty()) continue;
    for (int other = 0; other < header.world; ++other) expected.insert(other);
    break;
  }
  for (const int rank : expected)
    if (!reader.ranks_.contains(rank)) reader.counts_.missing.insert(rank);
  reader.counts_.ranks = static_cast<int>(reader.ranks_.size());
  return reader;
}

Status TraceReader::ReadHeaders(const std::set<int>& ranks,
                                std::map<int64_t, std::vector<TraceHeader>>* starts) {
  std::vector<std::string> files;
  std::string strange;  // what the first header that is none has
  for (const int rank : ranks) {
    for (const std::string& path : FilesOf(rank)) {
      files.push_back(path);
      KEEL_RETURN_IF_ERROR(EachLine(path, [&](std::string_view line, bool whole) {
        if (!whole || !line.starts_with("{\"")) return;
        const auto parsed = trainer::ParseTraceLine(line);
        if (!parsed.ok() && strange.empty()) strange = " (" + parsed.status().message() + ")";
        const auto* const header = parsed.ok() ? std::get_if<TraceHeader>(&*parsed) : nullptr;
        if (header == nullptr || header->rank != rank) return;
        ranks_[rank] = *header;
        // A start's header stands again where the rank's next file begins.
        auto& of_start = (*starts)[header->start];
        if (std::ranges::count(of_start, rank, &TraceHeader::rank) == 0)
          of_start.push_back(*header);
      }));
    }
  }
  if (!starts->empty()) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: every file there is damaged: expected a line with keel_trace and "
                            "the rank of the file's name, found none in {}{}",
                            folder_, Names(files), strange));
}

Status TraceReader::Each(
    int rank, const std::function<void(const trainer::TracedSpan&, int64_t begin_ns)>& take) {
  for (const std::string& path : FilesOf(rank)) {
    std::optional<int64_t> shift_ns;
    KEEL_RETURN_IF_ERROR(EachLine(path, [&](std::string_view line, bool whole) {
      const auto parsed = trainer::ParseTraceLine(line);
      if (!whole || !parsed.ok()) {
        ++counts_.torn;
        return;
      }
      if (const auto* const header = std::get_if<TraceHeader>(&*parsed)) {
        const auto found = shifts_.find({header->rank, header->start});
        shift_ns = found == shifts_.end() ? std::nullopt : std::optional(found->second.shift_ns);
      } else if (const auto* const dropped = std::get_if<trainer::DroppedSpans>(&*parsed)) {
        counts_.dropped += dropped->count;
      } else if (shift_ns) {
        const auto& span = std::get<trainer::TracedSpan>(*parsed);
        const int64_t begin_ns = span.begin_ns + *shift_ns - origin_ns_;
        if (begin_ns >= 0) {
          take(span, begin_ns);
        } else {
          ++counts_.unplaced;
        }
      } else {
        ++counts_.unplaced;
      }
    }));
  }
  return Status::Ok();
}

}  // namespace keel::tools
