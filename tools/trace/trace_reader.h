// What the ranks of a run have noted of their spans (trace/ of its folder), on one time axis.
// Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "trainer/metrics/trace_format.h"

namespace keel::tools {

// How the time of a rank's start was brought onto that of the lowest rank that began with it.
enum class ClockSource {
  kOwn,       // it is that rank, or alone
  kMachine,   // both ran on one machine, whose clock they share
  kMeetings,  // when they left the same barriers
  kWall,      // by the wall clocks of two machines, which may differ
};

// Nanoseconds to be added to the monotonic clock of a rank's start, for nanoseconds since 1970.
struct ClockShift {
  int64_t shift_ns = 0;
  ClockSource source = ClockSource::kOwn;
  int64_t spread_ns = 0;  // of kMeetings: how far the barriers disagree
};
// By the headers of all ranks that began together. Those of one rank are the same.
std::map<int, ClockShift> AlignClocks(const std::vector<trainer::TraceHeader>& headers);

// Likewise, of starts that follow each other. What begins on a machine that an earlier start has
// had is placed by the clock of that machine, and what begins elsewhere by a wall clock.
class ClockTable {
 public:
  std::map<int, ClockShift> Add(const std::vector<trainer::TraceHeader>& headers);

 private:
  std::map<std::string, int64_t> shifts_ns_;  // by the machine's boot
  bool begun_ = false;
};

struct TraceCounts {
  int ranks = 0;
  int64_t dropped = 0;     // that a rank had no room for
  int64_t torn = 0;        // lines that are none, such as of a process that was killed within one
  int64_t unplaced = 0;    // spans behind no header, which nobody knows the clock of
  bool unaligned = false;  // some rank's time is that of its wall clock
  int64_t spread_ns = 0;   // the worst of meetings
  bool by_meetings = false;
  // Ranks of which nothing is known: that the newest start had, or that have a damaged file.
  std::set<int> missing = {};
};

class TraceReader {
 public:
  // Finds the ranks' files and reads their headers. kNotFound where there are none, kInvalidData
  // where no file has a header.
  static Result<TraceReader> Open(const std::string& run_folder);

  // Of the newest start of each rank, by rank.
  const std::map<int, trainer::TraceHeader>& ranks() const { return ranks_; }
  // Since 1970: nothing is earlier.
  int64_t origin_ns() const { return origin_ns_; }
  // Calls `take` with each span of a rank, in its files' order, and when it began, in nanoseconds
  // since the origin.
  Status Each(int rank,
              const std::function<void(const trainer::TracedSpan&, int64_t begin_ns)>& take);
  // What there was, so far.
  const TraceCounts& counts() const { return counts_; }

 private:
  using Key = std::pair<int, int64_t>;  // rank and start
  std::vector<std::string> FilesOf(int rank) const;
  Status ReadHeaders(const std::set<int>& ranks,
                     std::map<int64_t, std::vector<trainer::TraceHeader>>* starts);

  std::string folder_;
  std::map<int, trainer::TraceHeader> ranks_;
  std::map<Key, ClockShift> shifts_;
  int64_t origin_ns_ = 0;
  TraceCounts counts_;
};

}  // namespace keel::tools
