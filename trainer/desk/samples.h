// Which response of an asynchronous RL run.
#pragma once

#include <compare>
#include <cstdint>

#include "rollout/partial.h"

namespace keel::trainer::desk {

using rollout::Partial;
using rollout::VersionSpan;

// One of the responses to the prompt at a position of the run.
struct SampleId {
  int64_t position = 0;
  int sample = 0;  // as Response::sample; ReMax's baseline has a number of its own
  friend auto operator<=>(const SampleId&, const SampleId&) = default;
};

}  // namespace keel::trainer::desk
