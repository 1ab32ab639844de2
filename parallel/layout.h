// Layout: which rank sits where in the mesh of parallel axes. Pure; no torch, no communication.
//
// A rank's number is that of its coordinates, the first axis innermost. Make alone says in which
// order the axes stand: TP, DP, PP, so that TP peers are neighbours on a node. A further axis (CP,
// EP) is a value of Axis with its name, and its place there.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace keel::parallel {

enum class Axis { kTp, kDp, kPp };
std::string_view NameOf(Axis axis);  // "tp"

class AxisSet {
 public:
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= Bit(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ & Bit(axis)) != 0; }
  constexpr AxisSet With(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr AxisSet Without(AxisSet other) const { return AxisSet(bits_ & ~other.bits_); }

 private:
  constexpr explicit AxisSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t Bit(Axis axis) { return uint32_t{1} << static_cast<uint32_t>(axis); }
  uint32_t bits_ = 0;
};

// The axes whose ranks see different parts of a batch: along them every rank holds the same
// weights, and gradients are summed.
inline constexpr AxisSet kDataAxes = {Axis::kDp};

struct AxisDegree {
  Axis axis = Axis::kTp;
  int degree = 1;
};

class Layout {
 public:
  Layout() = default;  // one rank
  // The innermost axis first. An axis that is not named has degree 1.
  explicit Layout(std::vector<AxisDegree> axes) : axes_(std::move(axes)) {}
  // kConfig with the equation when world != tp * dp * pp ("world size 6 != dp 1 x tp 2 x pp 2 =
  // 4").
  static Result<Layout> Make(int world, int tp, int pp);
  // Of one model that is split over `tp` ranks and trained by nobody.
  static Layout OfReplica(int tp) { return Layout({{Axis::kTp, tp}}); }

  int world() const;
  const std::vector<AxisDegree>& axes() const { return axes_; }  // the innermost first
  int degree(Axis axis) const;
  int degree(AxisSet axes) const;  // the product
  int tp() const { return degree(Axis::kTp); }
  int dp() const { return degree(Axis::kDp); }
  int pp() const { return degree(Axis::kPp); }

  int CoordOf(int rank, Axis axis) const;
  // The rank with the coordinates of `rank` along `axes`, and 0 along all others.
  int Project(int rank, AxisSet axes) const;
  // How far apart two ranks are that are neighbours along `axis`.
  int stride(Axis axis) const;
  // The ranks that differ from `rank` in `axis` alone, in order of that coordinate.
  std::vector<int> GroupRanks(int rank, Axis axis) const;
  // All groups of an axis, for the overview printed at start.
  std::vector<std::vector<int>> Groups(Axis axis) const;
  std::string ToString() const;  // "tp 2 x dp 1 x pp 2"

 private:
  std::vector<AxisDegree> axes_;
};

// A rank's place in its layout.
struct Seat {
  Layout layout;
  int rank = 0;
};

// [begin, end) of the decoder layers of a stage: as even as can be, the first stages get one more.
struct LayerRange {
  int begin = 0;
  int end = 0;
};
LayerRange LayersOfStage(int num_layers, int stages, int stage);

}  // namespace keel::parallel
