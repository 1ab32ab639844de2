#include "parallel/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace keel::parallel {

std::string_view NameOf(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return "tp";
    case Axis::kDp:
      return "dp";
    case Axis::kPp:
      return "pp";
  }
  return "axis without a name";
}

Result<Layout> Layout::Make(int world, int tp, int pp) {
  if (tp < 1 || pp < 1) {
    return Status(StatusCode::kConfig,
                  fmt::format("parallel sizes must be at least 1, found tensor_model_parallel_size "
                              "{} and pipeline_model_parallel_size {}",
                              tp, pp));
  }
  if (world < 1 || world % (tp * pp) != 0) {
    const int dp = std::max(1, world / (tp * pp));
    return Status(StatusCode::kConfig,
                  fmt::format("world size {} != dp {} x tp {} x pp {} = {}: start a multiple of {} "
                              "ranks, or change tensor_model_parallel_size or "
                              "pipeline_model_parallel_size",
                              world, dp, tp, pp, dp * tp * pp, tp * pp));
  }
  return Layout({{Axis::kTp, tp}, {Axis::kDp, world / (tp * pp)}, {Axis::kPp, pp}});
}

int Layout::world() const {
  int product = 1;
  for (const AxisDegree& one : axes_) product *= one.degree;
  return product;
}

int Layout::degree(Axis axis) const { return degree(AxisSet{axis}); }

int Layout::degree(AxisSet axes) const {
  int product = 1;
  for (const AxisDegree& one : axes_)
    if (axes.has(one.axis)) product *= one.degree;
  return product;
}

int Layout::stride(Axis axis) const {
  int stride = 1;
  for (const AxisDegree& one : axes_) {
    if (one.axis == axis) break;
    stride *= one.degree;
  }
  return stride;
}

int Layout::CoordOf(int rank, Axis axis) const { return rank / stride(axis) % degree(axis); }

int Layout::Project(int rank, AxisSet axes) const {
  int projected = 0;
  for (const AxisDegree& one : axes_)
    if (axes.has(one.axis)) projected += CoordOf(rank, one.axis) * stride(one.axis);
  return projected;
}

std::vector<int> Layout::GroupRanks(int rank, Axis axis) const {
  const int first = rank - CoordOf(rank, axis) * stride(axis);
  std::vector<int> ranks;
  for (int i = 0; i < degree(axis); ++i) ranks.push_back(first + i * stride(axis));
  return ranks;
}

std::vector<std::vector<int>> Layout::Groups(Axis axis) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world(); ++rank) {
    if (CoordOf(rank, axis) == 0) groups.push_back(GroupRanks(rank, axis));
  }
  return groups;
}

std::string Layout::ToString() const {
  std::vector<std::string> parts;
  for (const AxisDegree& one : axes_)
    parts.push_back(fmt::format("{} {}", NameOf(one.axis), one.degree));
  return fmt::format("{}", fmt::join(parts, " x "));
}

LayerRange LayersOfStage(int num_layers, int stages, int stage) {
  const int base = num_layers / stages;
  const int rest = num_layers % stages;
  const int begin = stage * base + std::min(stage, rest);
  return {begin, begin + base + (stage < rest ? 1 : 0)};
}

}  // namespace keel::parallel
