// HostTeam: the lanes that work on one body together, played by one thread of a host.
//
// A body is written over a team, which has
//   For(n, f)      f(i) for i in [0, n); lane i % kLanes does it. What one lane writes another may
//                  read only after Sync().
//   Sum(n, f), Reduce(n, start, step, join)
//                  over i as For deals them out, to every lane: first each lane's own, by step, in
//                  the order of i; then those of 32 neighbours by halves, then of each 32 in order.
//   Sync()         all lanes have done what stands before it, or none goes on
//   Shared<T>()    memory of the team, as much as was asked for at the launch
// cuda/device_team.cuh is the same of a GPU's threads; sums are of one order on both, and so of
// the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernel_table.h"

namespace keel::gpu {

template <int Lanes, LaneOrder order = LaneOrder::kForward>
class HostTeam {
  static_assert(Lanes % 32 == 0);

 public:
  static constexpr int kLanes = Lanes;
  explicit HostTeam(std::byte* shared) : shared_(shared) {}

  template <class F>
  void For(int64_t n, F&& f) const {
    if constexpr (order == LaneOrder::kForward) {
      for (int64_t i = 0; i < n; ++i) f(i);
    } else {
      for (int64_t i = n; i-- > 0;) f(i);
    }
  }

  template <class State, class Step, class Join>
  State Reduce(int64_t n, const State& start, Step&& step, Join&& join) const {
    std::array<State, Lanes> lanes;
    lanes.fill(start);
    for (int64_t i = 0; i < n; ++i) step(lanes[static_cast<size_t>(i % Lanes)], i);
    State total = start;
    for (size_t warp = 0; warp < Lanes; warp += 32) {
      for (size_t half = 16; half > 0; half /= 2) {
        for (size_t lane = warp; lane < warp + half; ++lane)
          lanes[lane] = join(lanes[lane], lanes[lane + half]);
      }
      total = warp == 0 ? lanes[0] : join(total, lanes[warp]);
    }
    return total;
  }

  template <class F>
  auto Sum(int64_t n, F&& f) const {
    using Number = std::decay_t<decltype(f(n))>;
    return Reduce(
        n, Number{0}, [&](Number& sum, int64_t i) { sum += f(i); },
        [](Number a, Number b) { return a + b; });
  }

  void Sync() const {}
  template <typename T>
  T* Shared() const {
    return reinterpret_cast<T*>(shared_);
  }

 private:
  std::byte* shared_;
};

}  // namespace keel::gpu
