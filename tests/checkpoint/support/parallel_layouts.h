// A small mixture-of-experts decoder cut as training jobs cut theirs.
//
// Tensor parallel (fused query-key-value and gate-up storage, key-value heads fewer than ranks, a
// vocabulary that does not divide), pipeline stages with several chunks each and tied embeddings,
// experts that do not divide over their ranks, context-parallel and data-parallel replicas, an
// optimizer whose flat state is divided over these, and low-rank adapters.
#pragma once

#include <string>
#include <vector>

#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint::testing {

struct ParallelLayout {
  int dp = 1, tp = 1, pp = 1;
  int vpp = 1;  // chunks of layers per pipeline stage, dealt out in turn
  int ep = 1;   // divides dp: groups of ranks that share the experts out
  int cp = 1;
  int world() const { return dp * tp * pp * cp; }
  std::string ToString() const;
};

// The whole model and its optimizer's state, filled from a seed.
TrainingState DecoderState(uint64_t seed);

// The tables of every rank, and memory for them.
Cut CutDecoder(const ParallelLayout& layout);

}  // namespace keel::checkpoint::testing
