#include "model/rotation.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/status.h"

namespace keel::model {

const RopeTable& Rotator::Table(int64_t positions) {
  const int64_t have = table_.cosine.defined() ? table_.cosine.size(0) : 0;
  if (have < positions) {
    const int64_t rows = std::max({positions, 2 * have, int64_t{256}});
    table_ = MakeRopeTable(spec_, head_dim_, {rows, spec_.by_length() ? 0 : rows}, device_);
  }
  return table_;
}

Rotation Rotator::Of(const Packing& packing) {
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < packing.boundaries.size(); ++i)
    longest = std::max(longest, packing.boundaries[i + 1] - packing.boundaries[i]);
  if (!spec_.by_length() || longest <= spec_.original_positions)
    return {Table(longest), packing.positions};

  // The rows of short sequences, and behind them those of each long one.
  const RopeTable shared =
      MakeRopeTable(spec_, head_dim_, {std::min(longest, spec_.original_positions), 0}, device_);
  std::vector<at::Tensor> cosines = {shared.cosine};
  std::vector<at::Tensor> sines = {shared.sine};
  at::Tensor rows = packing.positions.clone();
  int64_t next = shared.cosine.size(0);
  for (size_t i = 0; i + 1 < packing.boundaries.size(); ++i) {
    const int64_t begin = packing.boundaries[i];
    const int64_t length = packing.boundaries[i + 1] - begin;
    if (length <= spec_.original_positions) continue;
    const RopeTable own = MakeRopeTable(spec_, head_dim_, {length, length}, device_);
    cosines.push_back(own.cosine);
    sines.push_back(own.sine);
    rows.narrow(0, begin, length).add_(next);
    next += length;
  }
  return {{at::cat(cosines), at::cat(sines)}, rows};
}

Rotation Rotator::At(const at::Tensor& positions, int64_t end) {
  if (spec_.by_length() && end > spec_.original_positions) {
    throw Error(StatusCode::kConfig,
                fmt::format("a text of {} tokens is longer than the {} that this model's rope_type "
                            "{} turns alike: what is in the cache would have to be turned anew, "
                            "which generation does not do; give a smaller max_tokens",
                            end, spec_.original_positions,
                            kRopeTypeNames[static_cast<size_t>(spec_.type)]));
  }
  return {Table(end), positions};
}

}  // namespace keel::model
