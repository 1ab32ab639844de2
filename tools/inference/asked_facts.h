// What a command that computes on several ranks was asked for, as facts that all of them must have
// alike: each rank schedules and chooses tokens for itself.
#pragma once

#include <cstdint>

#include "rollout/sampling.h"
#include "trainer/run/rank_agreement.h"

namespace keel::tools {

// By the names of the flags.
trainer::SharedFacts FactsOf(const rollout::SamplingParams& sampling);

// How many texts are computed at a time, and in how much memory.
trainer::SharedFacts EngineFacts(int64_t max_num_seqs, int64_t cache_megabytes);

}  // namespace keel::tools
