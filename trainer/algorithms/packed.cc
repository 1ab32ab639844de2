#include "trainer/algorithms/packed.h"

#include <fmt/format.h>

#include "common/status.h"

namespace keel::trainer::rl {

void CheckPacked(const PackedView& view) {
  bool good = !view.boundaries.empty() && view.boundaries.front() == 0 &&
              static_cast<size_t>(view.boundaries.back()) == view.tokens();
  for (size_t s = 0; good && s < view.sequences(); ++s)
    good = view.boundaries[s] <= view.boundaries[s + 1];
  if (!good) {
    throw Error(
        StatusCode::kInternal,
        fmt::format("packed responses: expected boundaries that rise from 0 to the {} tokens "
                    "of the mask, found [{}]",
                    view.tokens(), fmt::join(view.boundaries, ", ")));
  }
}

int64_t PolicyTokens(const PackedView& view, size_t s) {
  int64_t count = 0;
  for (size_t t = view.begin(s); t < view.end(s); ++t) count += view.mask[t] != 0;
  return count;
}

int64_t PolicyTokens(const PackedView& view) {
  int64_t count = 0;
  for (const uint8_t one : view.mask) count += one != 0;
  return count;
}

LossDenominators CountDenominators(const PackedView& view, double scale_factor) {
  LossDenominators counts;
  counts.scale_factor = scale_factor;
  for (size_t s = 0; s < view.sequences(); ++s) {
    const int64_t tokens = PolicyTokens(view, s);
    counts.tokens += tokens;
    counts.sequences += tokens > 0;
  }
  return counts;
}

}  // namespace keel::trainer::rl
