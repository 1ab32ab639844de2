// Layout: which rank sits where in the mesh of parallel axes. Pure; no torch, no communication.
//
// Axis order: TP innermost, then DP, then PP, so that TP peers are neighbours on a node:
//   rank = tp_rank + tp * (dp_rank + dp * pp_rank).
// Further axes (CP, EP) are new entries of Axis; nothing else knows the order.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::parallel {

enum class Axis { kTp = 0, kDp = 1, kPp = 2 };
inline constexpr int kAxes = 3;

class Layout {
 public:
  Layout() : Layout(1, 1, 1) {}
  // kConfig with the equation when world != tp * dp * pp ("world size 6 != dp 1 x tp 2 x pp 2 =
  // 4").
  static Result<Layout> Make(int world, int tp, int pp);
  // Of one model that is split over `tp` ranks and trained by nobody.
  static Layout OfReplica(int tp) { return {tp, 1, 1}; }

  int world() const;
  int degree(Axis axis) const { return degrees_[static_cast<size_t>(axis)]; }
  int tp() const { return degree(Axis::kTp); }
  int dp() const { return degree(Axis::kDp); }
  int pp() const { return degree(Axis::kPp); }

  int CoordOf(int rank, Axis axis) const;
  int RankOf(int tp_rank, int dp_rank, int pp_rank) const;
  // The ranks that differ from `rank` in `axis` alone, in order of that coordinate.
  std::vector<int> GroupRanks(int rank, Axis axis) const;
  // All groups of an axis, for the overview printed at start.
  std::vector<std::vector<int>> Groups(Axis axis) const;
  std::string ToString() const;  // "tp 2 x dp 1 x pp 2"

 private:
  Layout(int tp, int dp, int pp) : degrees_{tp, dp, pp} {}
  std::array<int, kAxes> degrees_;
};

// A rank's place in its layout.
struct Seat {
  Layout layout;
  int rank = 0;
  int Coord(Axis axis) const { return layout.CoordOf(rank, axis); }
};

// [begin, end) of the decoder layers of a stage: as even as can be, the first stages get one more.
struct LayerRange {
  int begin = 0;
  int end = 0;
};
LayerRange LayersOfStage(int num_layers, int stages, int stage);

}  // namespace keel::parallel
