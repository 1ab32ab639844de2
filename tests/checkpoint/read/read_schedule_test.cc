#include "checkpoint/read/read_schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "checkpoint/format/index.h"
#include "checkpoint/read/box_runs.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = 4096;

// Files of so many chunks each, and no tensors.
Index FilesOf(const std::vector<int64_t>& chunks) {
  IndexBuilder builder(kChunk);
  for (size_t f = 0; f < chunks.size(); ++f) {
    ChunkedDigest digest;
    digest.size = chunks[f] * kChunk;
    digest.chunks.resize(static_cast<size_t>(chunks[f]));
    builder.AddFile("file_" + std::to_string(1000 + f), std::move(digest));
  }
  return ValueOrThrow(Index::Parse(ValueOrThrow(builder.Build()), "test"));
}

std::vector<int> AllFiles(const Index& index) {
  std::vector<int> files(static_cast<size_t>(index.files()));
  std::iota(files.begin(), files.end(), 0);
  return files;
}

struct Case {
  Index index;
  std::vector<std::vector<ChunkNeed>> needs;
};

Case RandomCase(std::mt19937_64& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<int64_t> chunks;
  for (int64_t f = 0; f <= below(6); ++f) chunks.push_back(below(60));
  Case one{FilesOf(chunks), {}};
  one.needs.resize(static_cast<size_t>(2 + below(7)));
  for (auto& needs : one.needs) {
    for (size_t f = 0; f < chunks.size(); ++f) {
      for (int64_t at = below(20); at < chunks[f];) {
        const int64_t count = std::min(1 + below(30), chunks[f] - at);
        needs.push_back({static_cast<int32_t>(f), static_cast<int32_t>(1 + below(8)), at, count});
        at += count + below(3) * below(20);
      }
    }
  }
  return one;
}

std::map<std::pair<int, int64_t>, std::map<int, int32_t>> NeedersByChunk(const Case& one) {
  std::map<std::pair<int, int64_t>, std::map<int, int32_t>> needers;
  for (size_t r = 0; r < one.needs.size(); ++r) {
    for (const ChunkNeed& need : one.needs[r]) {
      for (int64_t c = need.first; c < need.first + need.count; ++c)
        needers[{need.file, c}][static_cast<int>(r)] = need.eighths;
    }
  }
  return needers;
}

TEST(ReadSchedule, EachChunkHasOneReaderAndRoundsAreBounded) {
  std::mt19937_64 random(1);
  const RoundLimits limits{3 * kChunk, 4 * kChunk};
  for (int round = 0; round < 3000; ++round) {
    const Case one = RandomCase(random);
    const int world = static_cast<int>(one.needs.size());
    const ReadSchedule schedule =
        MakeReadSchedule(one.index, AllFiles(one.index), one.needs, true, limits);
    ASSERT_TRUE(schedule.exchange);
    auto needers = NeedersByChunk(one);
    // 1. Every chunk once; shared exactly when someone else needs it.
    std::set<std::pair<int, int64_t>> seen;
    std::vector<std::vector<std::pair<int, int64_t>>> given(static_cast<size_t>(world));
    std::vector<int64_t> load(static_cast<size_t>(world), 0);
    int64_t total = 0;
    for (const ReadShare& share : schedule.shares) {
      for (int64_t c = share.first; c < share.first + share.count; ++c) {
        ASSERT_TRUE(seen.emplace(share.file, c).second);
        auto others = needers[{share.file, c}];
        others.erase(share.reader);
        ASSERT_EQ(share.shared != 0, !others.empty());
        if (share.shared != 0) given[static_cast<size_t>(share.reader)].emplace_back(share.file, c);
      }
      load[static_cast<size_t>(share.reader)] += share.count;
      total += share.count;
    }
    int64_t chunks = 0;
    for (int f = 0; f < one.index.files(); ++f) chunks += one.index.file(f).chunk_count;
    ASSERT_EQ(static_cast<int64_t>(seen.size()), chunks);
    // 2. Nobody reads much more than the mean.
    ASSERT_LE(*std::max_element(load.begin(), load.end()),
              static_cast<int64_t>(1.25 * static_cast<double>(total) / world) + 3 + world);
    // 3. Rounds hand on every shared chunk once, within the limits or one chunk at a time.
    std::vector<size_t> next(static_cast<size_t>(world), 0);
    for (const std::vector<int32_t>& counts : schedule.rounds) {
      ASSERT_EQ(counts.size(), static_cast<size_t>(world));
      std::vector<int64_t> received(static_cast<size_t>(world), 0);
      std::vector<int> parts(static_cast<size_t>(world), 0);
      int64_t any = 0;
      for (size_t r = 0; r < counts.size(); ++r) {
        any += counts[r];
        ASSERT_LE(counts[r] * kChunk, std::max(limits.send, kChunk));
        for (int32_t i = 0; i < counts[r]; ++i) {
          for (const auto& [rank, eighths] : needers[given[r].at(next[r])]) {
            if (rank == static_cast<int>(r)) continue;
            received[static_cast<size_t>(rank)] += kChunk * eighths / 8;
            ++parts[static_cast<size_t>(rank)];
          }
          ++next[r];
        }
      }
      ASSERT_GT(any, 0);
      for (size_t r = 0; r < received.size(); ++r) {
        if (parts[r] > 1) {
          ASSERT_LE(received[r], limits.receive);
        }
      }
    }
    for (size_t r = 0; r < given.size(); ++r) ASSERT_EQ(next[r], given[r].size());
    // 4. It survives the wire.
    const ReadSchedule parsed =
        ValueOrThrow(ReadSchedule::Parse(schedule.Serialize(), one.index, world));
    ASSERT_EQ(parsed.Serialize(), schedule.Serialize());
  }
}

TEST(ReadSchedule, WithoutAnExchangeOnlyWhatNobodyNeedsIsDealtOut) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    const Case one = RandomCase(random);
    const ReadSchedule schedule =
        MakeReadSchedule(one.index, AllFiles(one.index), one.needs, false, {});
    const auto needers = NeedersByChunk(one);
    int64_t dealt = 0;
    for (const ReadShare& share : schedule.shares) {
      for (int64_t c = share.first; c < share.first + share.count; ++c) {
        ASSERT_FALSE(needers.contains({share.file, c}));
        ++dealt;
      }
    }
    int64_t chunks = 0;
    for (int f = 0; f < one.index.files(); ++f) chunks += one.index.file(f).chunk_count;
    ASSERT_EQ(dealt, chunks - static_cast<int64_t>(needers.size()));
    ASSERT_TRUE(schedule.rounds.empty());
  }
}

TEST(ReadSchedule, WhoNeedsItReadsItInOneRun) {
  // Two ranks with a file of their own each, and a third file that both need.
  const Index index = FilesOf({10, 10, 20});
  const std::vector<std::vector<ChunkNeed>> needs = {{{0, 8, 0, 10}, {2, 8, 0, 20}},
                                                     {{1, 8, 0, 10}, {2, 8, 0, 20}}};
  const ReadSchedule schedule = MakeReadSchedule(index, AllFiles(index), needs, true);
  std::vector<std::tuple<int, int, int64_t, int64_t, bool>> shares;
  for (const ReadShare& s : schedule.shares)
    shares.emplace_back(s.file, s.reader, s.first, s.count, s.shared != 0);
  EXPECT_THAT(shares, ElementsAre(std::tuple(0, 0, 0, 10, false), std::tuple(1, 1, 0, 10, false),
                                  std::tuple(2, 0, 0, 10, true), std::tuple(2, 1, 10, 10, true)));
}

// Copying is work too: with the reads alone shared out evenly, who needs three quarters of a
// checkpoint would end long after who needs one.
TEST(ReadSchedule, WhoHasMoreToCopyReadsLess) {
  const Index index = FilesOf({240});
  const std::vector<std::vector<ChunkNeed>> needs = {{{0, 8, 0, 60}}, {{0, 8, 60, 180}}};
  const ReadSchedule schedule = MakeReadSchedule(index, AllFiles(index), needs, true);
  std::vector<int64_t> reads(2, 0);
  for (const ReadShare& share : schedule.shares)
    reads[static_cast<size_t>(share.reader)] += share.count;
  EXPECT_EQ(reads[0] + reads[1], 240);
  EXPECT_GT(reads[0], reads[1] + 10);
  // A copied chunk is a quarter of one that is read and verified.
  const double first = static_cast<double>(reads[0]) + 60.0 / 4;
  const double second = static_cast<double>(reads[1]) + 180.0 / 4;
  EXPECT_LT(std::max(first, second), 1.08 * (first + second) / 2);
}

// Where one rank has more than its share by a little, nothing is handed on.
TEST(ReadSchedule, SmallDifferencesAreNoReasonToExchange) {
  const Index index = FilesOf({102, 98});
  const std::vector<std::vector<ChunkNeed>> needs = {{{0, 8, 0, 102}}, {{1, 8, 0, 98}}};
  const ReadSchedule schedule = MakeReadSchedule(index, AllFiles(index), needs, true);
  EXPECT_TRUE(schedule.rounds.empty());
}

TEST(ReadSchedule, TextFromAPeerIsCheckedBeforeItIsUsed) {
  const Index index = FilesOf({10, 5});
  const std::vector<std::vector<ChunkNeed>> needs = {{{0, 8, 0, 10}}, {{0, 8, 0, 10}}};
  const std::string text = MakeReadSchedule(index, AllFiles(index), needs, true).Serialize();
  ASSERT_TRUE(ReadSchedule::Parse(text, index, 2).ok());
  EXPECT_FALSE(ReadSchedule::Parse(text, index, 1).ok());
  EXPECT_FALSE(ReadSchedule::Parse(text, FilesOf({10}), 2).ok());
  for (size_t cut = 0; cut < text.size(); ++cut)
    EXPECT_FALSE(ReadSchedule::Parse(text.substr(0, cut), index, 2).ok()) << cut;
  std::mt19937_64 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = text;
    changed[random() % changed.size()] = static_cast<char>(random());
    const auto parsed = ReadSchedule::Parse(changed, index, 2);
    if (!parsed.ok()) continue;
    for (const ReadShare& share : parsed->shares) {
      ASSERT_LT(share.file, 2);
      ASSERT_LE(share.first + share.count, index.file(share.file).chunk_count);
    }
  }
}

// Every way to look at the runs of a box agrees with going through its elements one by one.
TEST(BoxRuns, AgreeWithOneElementAfterTheOther) {
  std::mt19937_64 random(4);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 3000; ++round) {
    const int dims = static_cast<int>(below(4));
    const int64_t element = int64_t{1} << below(4);
    Box box{Dims::Filled(dims, 0), Dims::Filled(dims, 0)}, source = box, destination = box;
    Dims padded = box.size;
    for (int d = 0; d < dims; ++d) {
      const int64_t origin = below(10);
      const auto around = [&](Box* one, int64_t* low, int64_t* high) {
        *low = below(3);
        *high = below(3);
        one->offset[d] = 5 + origin - *low;
      };
      box.offset[d] = 5 + origin;
      box.size[d] = 1 + below(5);
      int64_t low = 0, high = 0;
      around(&source, &low, &high);
      source.size[d] = low + box.size[d] + high;
      around(&destination, &low, &high);
      destination.size[d] = low + box.size[d] + high;
      padded[d] = destination.size[d] + below(2);
    }
    const Dims strides = ContiguousStrides(padded);
    const Dims source_strides = ContiguousStrides(source.size);
    const BoxRuns runs(box, source, destination, strides, element);
    // The oracle: (source byte, destination byte) of every byte.
    std::map<int64_t, int64_t> bytes;
    Dims at = Dims::Filled(dims, 0);
    for (int64_t i = 0; i < box.elements(); ++i) {
      int64_t rest = i;
      int64_t from = 0, to = 0;
      for (int d = dims - 1; d >= 0; --d) {
        at[d] = rest % box.size[d];
        rest /= box.size[d];
        from += (box.offset[d] + at[d] - source.offset[d]) * source_strides[d];
        to += (box.offset[d] + at[d] - destination.offset[d]) * strides[d];
      }
      for (int64_t b = 0; b < element; ++b) bytes[from * element + b] = to * element + b;
    }
    EXPECT_EQ(runs.SourceRange().first, bytes.begin()->first);
    EXPECT_EQ(runs.SourceRange().second, bytes.rbegin()->first + 1);
    for (int window = 0; window < 10; ++window) {
      const int64_t low = below(bytes.rbegin()->first + 10) - 5;
      const int64_t high = low + 1 + below(bytes.rbegin()->first + 10);
      const auto first = bytes.lower_bound(low);
      const auto last = bytes.lower_bound(high);
      const BoxRuns::Extent extent = runs.Within(low, high);
      ASSERT_EQ(extent.bytes, std::distance(first, last));
      if (first != last) {
        ASSERT_EQ(extent.begin, first->first);
        ASSERT_EQ(extent.end, std::prev(last)->first + 1);
      }
      auto expected = first;
      runs.ForEach(low, high, [&](int64_t from, int64_t to, int64_t size) {
        for (int64_t b = 0; b < size; ++b, ++expected) {
          ASSERT_NE(expected, last);
          ASSERT_EQ(from + b, expected->first);
          ASSERT_EQ(to + b, expected->second);
        }
      });
      ASSERT_EQ(expected, last);
      if (low >= 0) {
        const int64_t i = runs.FirstEndingAfter(low);
        if (i > 0) {
          ASSERT_LE(runs.At(i - 1).first + runs.bytes(), low);
        }
        if (i < runs.count()) {
          ASSERT_GT(runs.At(i).first + runs.bytes(), low);
        }
      }
    }
  }
}

}  // namespace
}  // namespace keel::checkpoint
