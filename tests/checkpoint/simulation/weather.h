// Weather: what can go wrong in one start of a simulated job, and how often; and the dice.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "tests/checkpoint/simulation/scheduler.h"

namespace keel::checkpoint::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t Bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n).
  int64_t Below(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }
  // In [0, 1).
  double Fraction() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  bool Chance(double p) { return p > 0 && Fraction() < p; }
  // Mostly short, now and then long.
  SimTime About(SimTime mean) {
    return SimTime(
        static_cast<int64_t>(-std::log(1.0 - Fraction()) * static_cast<double>(mean.count())));
  }

 private:
  uint64_t state_;
};

struct Weather {
  // The disk: chances per call.
  double disk_error = 0;   // fails with an errno
  double disk_hiccup = 0;  // takes as long as a few deadlines
  double cache_loss = 0;   // the page cache lets go of what it can
  bool short_writes = false;
  // The store: chances per message.
  double store_loss = 0;   // a message is never delivered
  double store_error = 0;  // an operation fails
  double store_delay = 0;  // a message takes as long as a few deadlines
  // The trainer: chances per save.
  double cancel = 0;    // asks the save to end
  double reckless = 0;  // overwrites state without asking the fence
  // The end of this start, if it is not the plan's: what dies, and when.
  enum class End { kNone, kRank, kMachine };
  enum class When { kDiskCall, kStoreCall, kTime };
  End end = End::kNone;
  When when = When::kDiskCall;
  int rank = 0;       // that dies; of any rank for the machine: -1
  int64_t count = 0;  // of calls
  SimTime time{};

  // Nothing is lost, late or failing, and nobody dies or changes his mind: all saves must succeed.
  bool fair() const {
    return disk_error == 0 && disk_hiccup == 0 && store_loss == 0 && store_error == 0 &&
           store_delay == 0 && cancel == 0 && reckless == 0 && end == End::kNone;
  }
  static Weather Draw(Dice& dice, int world, SimTime deadline);
  std::string Describe() const;
};

}  // namespace keel::checkpoint::testing
