// AdapterSpec: low-rank adapters beside the frozen weights of a model (LoRA, Hu et al. 2021): which
// weights have one, and of what size.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace keel::model {

struct AdapterSpec {
  static constexpr int64_t kMostRank = 65536;
  int64_t rank = 0;  // 0: the model has none, and all its weights are trained
  double alpha = 0;
  // What A and B give is multiplied by alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023), not by
  // alpha / rank.
  bool rank_stabilized = false;
  // Modules by their last names ("q_proj"), or by more of their path; empty: all that can have one.
  std::vector<std::string> targets = {};
  std::vector<std::string> excluded = {};  // by the same rule, of those

  bool used() const { return rank > 0; }
  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilized ? std::sqrt(r) : r);
  }
};

}  // namespace keel::model
