#include "model/ops/rotation.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/status.h"

namespace keel::model {

const RopeTable& Rotator::Table(int64_t longest) {
  const int64_t before = FirstRow(longest);
  const int64_t have = table_.cosine.defined() ? table_.cosine.size(0) : 0;
  if (have >= before + longest && (before == 0 || has_far_)) return table_;
  const int64_t rows = std::max({longest, 2 * have, int64_t{256}});
  if (before == 0) {
    table_ = MakeRopeTable(spec_, head_dim_, {rows, spec_.by_length() ? 0 : rows}, device_);
    return table_;
  }
  has_far_ = true;
  const RopeTable near = MakeRopeTable(spec_, head_dim_, {before, before}, device_);
  const RopeTable far = MakeRopeTable(spec_, head_dim_, {rows, before + 1}, device_);
  table_ = {at::cat({near.cosine, far.cosine}), at::cat({near.sine, far.sine}), spec_.interleaved};
  return table_;
}

Rotation Rotator::Of(const Packing& packing) {
  int64_t longest = 0;
  for (size_t i = 0; i < packing.sequences(); ++i) longest = std::max(longest, packing.length(i));
  if (!spec_.by_length() || longest <= spec_.original_positions)
    return {Table(longest), packing.positions};

  // Each long sequence has rows of its own behind those of the short ones, but for kLongrope, which
  // turns all long ones alike.
  const bool alike = spec_.type == RopeType::kLongrope;
  const RopeTable shared =
      alike ? Table(longest)
            : MakeRopeTable(spec_, head_dim_, {std::min(longest, spec_.original_positions), 0},
                            device_);
  std::vector<at::Tensor> cosines = {shared.cosine};
  std::vector<at::Tensor> sines = {shared.sine};
  at::Tensor rows = packing.positions.clone();
  int64_t next = shared.cosine.size(0);
  for (size_t i = 0; i < packing.sequences(); ++i) {
    const int64_t length = packing.length(i);
    if (length <= spec_.original_positions) continue;
    rows.narrow(0, packing.boundaries[i], packing.tokens(i)).add_(alike ? FirstRow(length) : next);
    if (alike) continue;
    const RopeTable own = MakeRopeTable(spec_, head_dim_, {length, length}, device_);
    cosines.push_back(own.cosine);
    sines.push_back(own.sine);
    next += length;
  }
  if (alike) return {shared, rows};
  return {{at::cat(cosines), at::cat(sines), spec_.interleaved}, rows};
}

std::vector<int32_t> Rotator::RowsOf(std::span<const TextPart> parts, int64_t longest) {
  int64_t tokens = 0;
  int64_t text = 0;
  for (const TextPart& part : parts) {
    tokens += part.tokens;
    text = std::max({text, part.length, part.first + part.tokens});
  }
  if (spec_.type == RopeType::kDynamic && text > spec_.original_positions) {
    throw Error(StatusCode::kConfig,
                fmt::format("a text of {} tokens is longer than the {} that this model's rope_type "
                            "{} turns alike: what is in the cache would have to be turned anew "
                            "with each token, which generation does not do; give a smaller "
                            "max_tokens",
                            text, spec_.original_positions,
                            kRopeTypeNames[static_cast<size_t>(spec_.type)]));
  }
  std::vector<int32_t> rows;
  rows.reserve(static_cast<size_t>(tokens));
  for (const TextPart& part : parts) {
    const int64_t first = FirstRow(part.length) + part.first;
    for (int64_t t = 0; t < part.tokens; ++t) rows.push_back(static_cast<int32_t>(first + t));
  }
  Table(std::max(text, longest));
  return rows;
}

}  // namespace keel::model
