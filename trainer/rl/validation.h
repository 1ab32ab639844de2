// Validation metrics over n samples of each prompt, under verl's names. Pure, torch-free.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/data/rollout_batch.h"
#include "trainer/metrics/step_line.h"

namespace keel::trainer::rl {

// Per data source: val-core/<source>/reward/{mean@n, best@n, worst@n, maj@n}. best@k and worst@k
// for k = 2, 4, ... below n are expectations over all choices of k of the n samples. maj@n is the
// score of the answer (Response::answer) that most samples gave; ties go to the one that was given
// first. A response without one votes for its whole text. val-aux/<source>/<name>/mean@n of what
// verifiers give beside the score. Where some of a prompt's `n` responses are missing, since they
// have no score, it counts with the others under the same names, and in no best@k or worst@k of
// more than it has.
StepLine ValidationMetrics(std::span<const Response> responses, int64_t n);

// The mean score over all sources.
double MeanScore(std::span<const Response> responses);

}  // namespace keel::trainer::rl
