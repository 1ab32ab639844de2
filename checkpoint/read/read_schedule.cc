#include "checkpoint/read/read_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "common/wire.h"

// How a schedule is made:
//
// 1. Every file is cut into segments: runs of chunks that the same ranks need. All that follows
//    deals with segments, of which there are far fewer than chunks.
// 2. The segments are dealt out, those with few needers first, since these have the least choice. A
//    chunk goes to a rank that needs it, because what its reader needs is not sent at all; but no
//    rank gets much more to do than the mean, because the slowest one decides when the load ends.
// 3. Where that leaves chunks for which no needer has room, keeping ranks below a limit that is a
//    little above the mean was of no use: the chunks have to travel anyway. Then everything is
//    dealt again with the mean itself as the limit, so that all have the same to do.
// 4. The parts are put into file order, and neighbours of one reader are joined, so that each rank
//    reads its files in sequence.
// 5. The chunks that travel are divided into rounds. A round is as many chunks of every rank as fit
//    into the buffers of their readers and of all who receive them; so the memory of an exchange
//    over connections is bounded, whatever the size of the checkpoint.
//
// Work is counted in chunks that are read and verified. Copying a chunk to its place counts as a
// part of that, since it takes memory's time, too.
namespace keel::checkpoint {
namespace {

// A rank that needs a chunk reads it itself up to this much more than its part of the work.
constexpr double kSlack = 1.04;
// What copying a chunk to its place takes, of reading and verifying it.
constexpr double kCopy = 1.0 / 4;
// A rank that copies much is given less to read: at most this part of the mean less than the
// others.
constexpr double kMostForCopies = 0.24;

struct Needer {
  int rank = 0;
  int32_t eighths = 0;
};

// A run of chunks that the same ranks need.
struct Segment {
  int32_t file = 0;
  int64_t first = 0;
  int64_t count = 0;
  std::vector<Needer> needers;  // by rank
};

// Cuts every file where the set of ranks that need it changes.
std::vector<Segment> CutSegments(const Index& index, std::span<const int> files,
                                 std::span<const std::vector<ChunkNeed>> needs) {
  struct Event {
    int32_t file;
    int64_t at;
    int rank;
    int32_t eighths;  // 0: the run ends
  };
  std::vector<Event> events;
  for (size_t r = 0; r < needs.size(); ++r) {
    for (const ChunkNeed& need : needs[r]) {
      events.push_back({need.file, need.first, static_cast<int>(r), need.eighths});
      events.push_back({need.file, need.first + need.count, static_cast<int>(r), 0});
    }
  }
  // The runs of all ranks become one list of places where some rank's need begins or ends. A sweep
  // over it knows at each place who needs what, and cuts a segment where the next event is.
  // Ends come before starts at the same place: one rank's runs may touch.
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.file != b.file) return a.file < b.file;
    if (a.at != b.at) return a.at < b.at;
    return (a.eighths > 0) < (b.eighths > 0);
  });
  std::vector<Segment> segments;
  auto event = events.begin();
  for (const int file : files) {
    while (event != events.end() && event->file < file) ++event;
    std::map<int, int32_t> active;
    int64_t at = 0;
    const int64_t end = index.file(file).chunk_count;
    while (at < end) {
      // All that happens up to here is applied; what is active then holds up to the next event.
      for (; event != events.end() && event->file == file && event->at <= at; ++event) {
        if (event->eighths > 0) {
          active[event->rank] = event->eighths;
        } else {
          active.erase(event->rank);
        }
      }
      const int64_t next =
          event != events.end() && event->file == file ? std::min(event->at, end) : end;
      Segment segment{file, at, next - at, {}};
      for (const auto& [rank, eighths] : active) segment.needers.push_back({rank, eighths});
      segments.push_back(std::move(segment));
      at = next;
    }
  }
  return segments;
}

// Deals by filling, as water fills a vessel with steps: the lowest candidates rise together until
// they stand as high as the next, which then rises with them, until the chunks are used up.
//
// How many of `count` chunks each candidate takes, so that the least loaded catch up first.
std::vector<int64_t> Deal(int64_t count, std::span<const int> candidates,
                          std::vector<int64_t>& load) {
  std::vector<int64_t> takes(candidates.size(), 0);
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto load_of = [&](size_t i) -> int64_t& {
    return load[static_cast<size_t>(candidates[i])];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return load_of(a) < load_of(b); });
  // 1. Raise the lowest ones together to the next higher one's level, while chunks last.
  size_t level = 1;
  int64_t left = count;
  for (; level < order.size(); ++level) {
    const int64_t step = load_of(order[level]) - load_of(order[level - 1]);
    if (step * static_cast<int64_t>(level) > left) break;
    for (size_t i = 0; i < level; ++i) {
      load_of(order[i]) += step;
      takes[order[i]] += step;
    }
    left -= step * static_cast<int64_t>(level);
  }
  // 2. The rest evenly.
  const auto among = static_cast<int64_t>(level);
  for (size_t i = 0; i < level; ++i) {
    const int64_t take = left / among + (static_cast<int64_t>(i) < left % among ? 1 : 0);
    load_of(order[i]) += take;
    takes[order[i]] += take;
  }
  return takes;
}

// Who reads what: parts of segments, and their readers.
struct Dealing {
  std::vector<Segment> segments;
  std::vector<int> readers;
  bool left_over = false;  // something is read by a rank that does not need it
};

// `segments`: those with few needers first, since these have the least choice. A rank takes what it
// needs up to `limit`; what is too much for those who need it falls, with what nobody needs, to
// whoever has the least.
Dealing DealOut(std::span<const Segment> segments, int64_t limit, std::vector<int64_t> load) {
  Dealing dealing;
  const auto deal = [&](const Segment& segment, int64_t first, int64_t count,
                        std::span<const int> candidates) {
    const std::vector<int64_t> takes = Deal(count, candidates, load);
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (takes[i] == 0) continue;
      dealing.segments.push_back({segment.file, first, takes[i], segment.needers});
      dealing.readers.push_back(candidates[i]);
      first += takes[i];
    }
  };
  std::vector<std::pair<const Segment*, int64_t>> left_over;  // from this chunk of it on
  for (const Segment& segment : segments) {
    // Whoever needs less than half as much of these chunks as another is no candidate: for little
    // that it saves itself, it would have to hand on nearly all.
    int32_t most = 0;
    for (const Needer& needer : segment.needers) most = std::max(most, needer.eighths);
    std::vector<int> candidates;
    int64_t room = 0;
    for (const Needer& needer : segment.needers) {
      const int64_t mine = limit - load[static_cast<size_t>(needer.rank)];
      if (2 * needer.eighths < most || mine <= 0) continue;
      candidates.push_back(needer.rank);
      room += mine;
    }
    const int64_t take = std::min(segment.count, room);
    if (take > 0) deal(segment, segment.first, take, candidates);
    if (take < segment.count) left_over.emplace_back(&segment, take);
  }
  // The rest is for everyone. A reader that needs nothing of a chunk only hands it on.
  std::vector<int> everyone(load.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  for (const auto& [segment, done] : left_over) {
    deal(*segment, segment->first + done, segment->count - done, everyone);
    dealing.left_over = dealing.left_over || !segment->needers.empty();
  }
  return dealing;
}

// What the ranks copy beyond the one that copies the least, in chunks to read.
std::vector<int64_t> WorkOfCopies(std::span<const std::vector<ChunkNeed>> needs, int64_t total) {
  std::vector<double> copies;
  for (const std::vector<ChunkNeed>& mine : needs) {
    double chunks = 0;
    for (const ChunkNeed& need : mine) chunks += static_cast<double>(need.count * need.eighths) / 8;
    copies.push_back(kCopy * chunks);
  }
  // Only differences count: what all have to copy changes nobody's share.
  const double least = *std::min_element(copies.begin(), copies.end());
  const double most =
      kMostForCopies * static_cast<double>(total) / static_cast<double>(needs.size());
  std::vector<int64_t> work;
  for (const double mine : copies)
    work.push_back(static_cast<int64_t>(std::min(mine - least, most)));
  return work;
}

// Fills rounds greedily. In each, rank after rank adds its next chunks while they fit; the first
// chunk of a rank always fits, and so does the first that a rank receives, so that a limit below
// the size of a chunk means one chunk a round and not an endless loop. The counts travel with the
// schedule, so that nobody has to ask what comes next.
void PlanRounds(std::span<const Segment> given, std::span<const int> reader_of, int64_t chunk_bytes,
                int world, const RoundLimits& limits, ReadSchedule* out) {
  // Each rank hands its chunks on in file order.
  struct Cursor {
    std::vector<size_t> segments;
    size_t segment = 0;
    int64_t chunk = 0;
    bool done() const { return segment == segments.size(); }
  };
  std::vector<Cursor> cursors(static_cast<size_t>(world));
  for (size_t i = 0; i < given.size(); ++i) {
    cursors[static_cast<size_t>(reader_of[i])].segments.push_back(i);
  }
  for (;;) {
    std::vector<int64_t> sent(static_cast<size_t>(world), 0);
    std::vector<int64_t> received(static_cast<size_t>(world), 0);
    std::vector<int32_t> counts(static_cast<size_t>(world), 0);
    bool any = false;
    for (int k = 0; k < world; ++k) {
      // Another rank begins each time, so that none waits for long.
      const int rank = static_cast<int>((static_cast<size_t>(k) + out->rounds.size()) %
                                        static_cast<size_t>(world));
      const auto r = static_cast<size_t>(rank);
      Cursor& cursor = cursors[r];
      while (!cursor.done()) {
        const Segment& segment = given[cursor.segments[cursor.segment]];
        // The chunk itself, and copies for those who need scattered parts of it.
        int64_t send = chunk_bytes;
        bool fits = true;
        for (const Needer& needer : segment.needers) {
          if (needer.rank == rank) continue;
          const int64_t bytes = chunk_bytes * needer.eighths / 8;
          // Nearly all of a chunk travels as one range of it, which needs no memory of its own.
          if (needer.eighths < 7) send += bytes;
          const int64_t before = received[static_cast<size_t>(needer.rank)];
          fits = fits && (before == 0 || before + bytes <= limits.receive);
        }
        fits = fits && (sent[r] == 0 || sent[r] + send <= limits.send);
        if (!fits) break;
        sent[r] += send;
        for (const Needer& needer : segment.needers) {
          if (needer.rank != rank)
            received[static_cast<size_t>(needer.rank)] += chunk_bytes * needer.eighths / 8;
        }
        ++counts[r];
        any = true;
        if (++cursor.chunk == segment.count) {
          cursor.chunk = 0;
          ++cursor.segment;
        }
      }
    }
    if (!any) return;
    out->rounds.push_back(std::move(counts));
  }
}

}  // namespace

// Without an exchange each rank reads what it needs itself. Only chunks that nobody needs are dealt
// out then, which are read because every byte of these files is to be verified.
ReadSchedule MakeReadSchedule(const Index& index, std::span<const int> files,
                              std::span<const std::vector<ChunkNeed>> needs, bool exchange,
                              const RoundLimits& limits) {
  const int world = static_cast<int>(needs.size());
  ReadSchedule schedule;
  schedule.exchange = exchange && world > 1;
  std::vector<Segment> segments = CutSegments(index, files, needs);
  std::vector<int64_t> load(needs.size(), 0);  // in chunks
  int64_t total = 0;
  for (const Segment& segment : segments) total += segment.count;
  if (schedule.exchange) {
    load = WorkOfCopies(needs, total);
  } else {
    for (size_t r = 0; r < needs.size(); ++r) {
      for (const ChunkNeed& need : needs[r]) load[r] += need.count;
    }
    std::erase_if(segments, [](const Segment& s) { return !s.needers.empty(); });
  }
  std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return a.needers.size() < b.needers.size();
  });

  // 1. To those who need it, if none has much more to do then. Otherwise much has to be handed on
  //    anyway, and all do the same.
  const double mean = static_cast<double>(std::accumulate(load.begin(), load.end(), total)) / world;
  Dealing dealing = DealOut(segments, static_cast<int64_t>(mean * kSlack) + 2, load);
  if (dealing.left_over) dealing = DealOut(segments, static_cast<int64_t>(std::ceil(mean)), load);

  // 2. In file order, with neighbours of one reader joined.
  std::vector<size_t> order(dealing.segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Segment &x = dealing.segments[a], &y = dealing.segments[b];
    return std::pair(x.file, x.first) < std::pair(y.file, y.first);
  });
  std::vector<Segment> given;
  std::vector<int> given_by;
  for (const size_t i : order) {
    Segment& segment = dealing.segments[i];
    const int reader = dealing.readers[i];
    const bool shared =
        schedule.exchange && std::any_of(segment.needers.begin(), segment.needers.end(),
                                         [&](const Needer& n) { return n.rank != reader; });
    ReadShare* last = schedule.shares.empty() ? nullptr : &schedule.shares.back();
    if (last != nullptr && last->file == segment.file && last->reader == reader &&
        last->first + last->count == segment.first && (last->shared != 0) == shared) {
      last->count += segment.count;
    } else {
      schedule.shares.push_back(
          {segment.file, static_cast<int32_t>(reader), segment.first, segment.count, shared});
    }
    if (shared) {
      given.push_back(std::move(segment));
      given_by.push_back(reader);
    }
  }
  PlanRounds(given, given_by, index.chunk_bytes(), world, limits, &schedule);
  return schedule;
}

std::string ReadSchedule::Serialize() const {
  WireWriter out;
  out.U32(exchange ? 1 : 0).Count(shares.size()).Pods(shares);
  out.Count(rounds.size()).Count(rounds.empty() ? 0 : rounds.front().size());
  for (const std::vector<int32_t>& round : rounds) out.Pods(round);
  return std::move(out).Take();
}

// The text comes from rank 0, which is of this very build. It is checked all the same, because it
// decides what is written where: shares must be in order, disjoint and within the files, and the
// rounds must hand on exactly the chunks that are shared.
Result<ReadSchedule> ReadSchedule::Parse(std::string_view text, const Index& index, int world) {
  const Status malformed(StatusCode::kInternal, "rank 0 sent a malformed schedule of reading");
  WireReader in(text);
  ReadSchedule schedule;
  uint32_t exchange = 0;
  uint64_t shares = 0, rounds = 0, ranks = 0;
  if (!in.U32(&exchange) || !in.U64(&shares) || !in.Pods(shares, &schedule.shares))
    return malformed;
  schedule.exchange = exchange != 0;
  std::vector<int64_t> given(static_cast<size_t>(world), 0);
  const ReadShare* last = nullptr;
  for (const ReadShare& share : schedule.shares) {
    if (share.file < 0 || share.file >= index.files() || share.reader < 0 ||
        share.reader >= world || share.first < 0 || share.count <= 0 ||
        share.count > index.file(share.file).chunk_count - share.first) {
      return malformed;
    }
    if (last != nullptr && (last->file > share.file ||
                            (last->file == share.file && last->first + last->count > share.first)))
      return malformed;
    if (share.shared != 0) given[static_cast<size_t>(share.reader)] += share.count;
    last = &share;
  }
  if (!in.U64(&rounds) || !in.U64(&ranks) ||
      (rounds > 0 && ranks != static_cast<uint64_t>(world)) ||
      (rounds > 0 && rounds > in.remaining() / sizeof(int32_t) / ranks))
    return malformed;
  schedule.rounds.resize(rounds);
  for (std::vector<int32_t>& round : schedule.rounds) {
    if (!in.Pods(ranks, &round)) return malformed;
    for (size_t r = 0; r < ranks; ++r) {
      if (round[r] < 0) return malformed;
      given[r] -= round[r];
    }
  }
  if (!in.AtEnd() || std::any_of(given.begin(), given.end(), [](int64_t n) { return n != 0; }))
    return malformed;
  return schedule;
}

}  // namespace keel::checkpoint
