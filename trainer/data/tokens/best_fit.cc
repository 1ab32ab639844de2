#include "trainer/data/tokens/best_fit.h"

#include <bit>
#include <numeric>

namespace keel::trainer {

namespace {

// The amounts of room of which there is an open bin: a bit each, and a bit for each 64 of these.
class Rooms {
 public:
  explicit Rooms(size_t most) : words_(most / 64 + 1), summary_(words_.size() / 64 + 1) {}

  void Set(size_t room) {
    words_[room / 64] |= Bit(room);
    summary_[room / 4096] |= Bit(room / 64);
  }
  void Clear(size_t room) {
    words_[room / 64] &= ~Bit(room);
    if (words_[room / 64] == 0) summary_[room / 4096] &= ~Bit(room / 64);
  }
  // The least that is at least `room`; 0 when there is none, which is no room to ask for.
  size_t Next(size_t room) const {
    const uint64_t here = words_[room / 64] & ~(Bit(room) - 1);
    if (here != 0) return room / 64 * 64 + Lowest(here);
    const size_t word = room / 64 + 1;
    for (size_t i = word / 64; i < summary_.size(); ++i) {
      const uint64_t later = i == word / 64 ? summary_[i] & ~(Bit(word) - 1) : summary_[i];
      if (later == 0) continue;
      const size_t found = i * 64 + Lowest(later);
      return found * 64 + Lowest(words_[found]);
    }
    return 0;
  }

 private:
  static uint64_t Bit(size_t at) { return uint64_t{1} << (at % 64); }
  static size_t Lowest(uint64_t word) { return static_cast<size_t>(std::countr_zero(word)); }

  std::vector<uint64_t> words_, summary_;
};

// Indices of `lengths`, the longest first, equal ones in their order.
std::vector<int32_t> LongestFirst(std::span<const int32_t> lengths, int32_t capacity) {
  std::vector<int64_t> place(static_cast<size_t>(capacity) + 2);
  for (const int32_t length : lengths) ++place[static_cast<size_t>(capacity - length) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<int32_t> order(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t at = place[static_cast<size_t>(capacity - lengths[i])]++;
    order[static_cast<size_t>(at)] = static_cast<int32_t>(i);
  }
  return order;
}

}  // namespace

Bins PackBestFit(std::span<const int32_t> lengths, int32_t capacity) {
  // 1. A bin for each item. Open bins with the same room are a stack: its top by room, and below
  // each bin the next.
  std::vector<int32_t> bin_of(lengths.size());
  std::vector<int32_t> below;
  std::vector<int32_t> top(static_cast<size_t>(capacity) + 1, -1);
  Rooms rooms(static_cast<size_t>(capacity));
  for (const int32_t item : LongestFirst(lengths, capacity)) {
    const auto length = static_cast<size_t>(lengths[static_cast<size_t>(item)]);
    size_t room = rooms.Next(length);
    int32_t bin = 0;
    if (room == 0) {
      room = static_cast<size_t>(capacity);
      bin = static_cast<int32_t>(below.size());
      below.push_back(-1);
    } else {
      bin = top[room];
      top[room] = below[static_cast<size_t>(bin)];
      if (top[room] < 0) rooms.Clear(room);
    }
    bin_of[static_cast<size_t>(item)] = bin;
    const size_t left = room - length;
    if (left == 0) continue;
    below[static_cast<size_t>(bin)] = top[left];
    top[left] = bin;
    rooms.Set(left);
  }

  // 2. The bins by their first item, and the items of each together.
  std::vector<int32_t> number(below.size(), -1);
  Bins bins;
  bins.begin.assign(below.size() + 1, 0);
  int32_t next = 0;
  for (int32_t& bin : bin_of) {
    int32_t& named = number[static_cast<size_t>(bin)];
    if (named < 0) named = next++;
    bin = named;
    ++bins.begin[static_cast<size_t>(bin) + 1];
  }
  std::partial_sum(bins.begin.begin(), bins.begin.end(), bins.begin.begin());
  std::vector<int64_t> place(bins.begin.begin(), bins.begin.end() - 1);
  bins.items.resize(lengths.size());
  for (size_t i = 0; i < bin_of.size(); ++i)
    bins.items[static_cast<size_t>(place[static_cast<size_t>(bin_of[i])]++)] =
        static_cast<int32_t>(i);
  return bins;
}

}  // namespace keel::trainer
