#include "parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::parallel {

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
  return Layout(tp, world / (tp * pp), pp);
}

int Layout::world() const {
  int product = 1;
  for (int degree : degrees_) product *= degree;
  return product;
}

int Layout::CoordOf(int rank, Axis axis) const {
  for (int a = 0; a < static_cast<int>(axis); ++a) rank /= degrees_[static_cast<size_t>(a)];
  return rank % degree(axis);
}

int Layout::RankOf(int tp_rank, int dp_rank, int pp_rank) const {
  return tp_rank + tp() * (dp_rank + dp() * pp_rank);
}

std::vector<int> Layout::GroupRanks(int rank, Axis axis) const {
  int stride = 1;
  for (int a = 0; a < static_cast<int>(axis); ++a) stride *= degrees_[static_cast<size_t>(a)];
  const int first = rank - CoordOf(rank, axis) * stride;
  std::vector<int> ranks;
  for (int i = 0; i < degree(axis); ++i) ranks.push_back(first + i * stride);
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
  return fmt::format("tp {} x dp {} x pp {}", tp(), dp(), pp());
}

LayerRange LayersOfStage(int num_layers, int stages, int stage) {
  const int base = num_layers / stages;
  const int rest = num_layers % stages;
  const int begin = stage * base + std::min(stage, rest);
  return {begin, begin + base + (stage < rest ? 1 : 0)};
}

}  // namespace keel::parallel
