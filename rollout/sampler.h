// The choice of one token from its logits. Torch-free, stateless, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "common/status.h"
#include "rollout/log_probs_mode.h"
#include "rollout/sampling.h"

namespace keel::rollout {

// Which draw of which stream of random numbers.
struct Draw {
  uint64_t prompt_id = 0;
  int sample = 0;
  int64_t position = 0;  // in the response
};
// Uniform in [0, 1), a pure function of seed and draw (Philox).
double UniformDraw(uint64_t seed, const Draw& draw);

struct ChosenToken {
  int32_t token = 0;
  float log_prob = 0;
};

// Temperatures below this are taken as 0.
inline constexpr double kLeastTemperature = 1e-5;

class Sampler {
 public:
  // Ids from `vocabulary` on, which no token has, are never chosen; log-probabilities are those of
  // the whole distribution all the same, as the trainer's are, except kProcessed.
  explicit Sampler(LogProbsMode mode, size_t vocabulary = std::numeric_limits<size_t>::max())
      : mode_(mode), vocabulary_(vocabulary) {}

  // Memory reused from call to call; one a thread.
  struct Workspace {
    std::vector<float> logits;   // after the penalty
    std::vector<float> weights;  // exp((logit - largest) / temperature)
    std::vector<double> sums;    // of the weights, by strides
    std::vector<int32_t> ids;
  };

  // `logits`: [vocabulary] fp32, padding left out. `context`: prompt and response so far. A single
  // draw from the inverse of the cumulative distribution in the order of ids, so that rounding of a
  // logit moves the borders between tokens by as little. kDataLoss when no distribution can be
  // made of the logits.
  Result<ChosenToken> Choose(std::span<const float> logits, const SamplingParams& params,
                             const Draw& draw, std::span<const int32_t> context,
                             Workspace& workspace) const;

 private:
  LogProbsMode mode_;
  size_t vocabulary_;
};

// log p(token) under softmax(logits). kDataLoss as above.
Result<float> LogProbOf(std::span<const float> logits, int32_t token);
// The `count` likeliest, or all there are, the likeliest first and the lowest id among equals, with
// what LogProbOf says of each.
Result<std::vector<ScoredToken>> LikeliestOf(std::span<const float> logits, int64_t count);

}  // namespace keel::rollout
