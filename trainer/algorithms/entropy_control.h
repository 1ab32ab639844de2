// The weight of the entropy bonus, steered to a target (He et al. 2025, arXiv 2505.22312;
// TRL's use_adaptive_entropy): larger by a step after each update in which the policy's entropy was
// not above the target, smaller by a step after any other, and applied only where the update before
// was not above it. Torch-free.
#pragma once

#include <limits>

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer::rl {

struct EntropyControlOptions {
  double initial = 0;  // coefficient
  double min = 0;
  double max = 1;
  double step = 0.005;
  double target = 0.2;  // nats, a mean over tokens
};

// Every rank has one and moves it alike. Its state belongs into the checkpoint.
class EntropyController {
 public:
  explicit EntropyController(const EntropyControlOptions& options)
      : options_(options), coefficient_(options.initial) {}

  double coefficient() const { return coefficient_; }
  // What the next update's bonus weighs: 0 before the first one was seen.
  double Applied() const { return last_entropy_ <= options_.target ? coefficient_ : 0; }
  // After an update whose tokens' mean entropy was `entropy`.
  void Update(double entropy);

  Json State() const;
  // kInvalidData when the document is not a controller's. Null, of a run without one: as at the
  // start.
  Status Restore(const Json& state);

 private:
  EntropyControlOptions options_;
  double coefficient_;
  double last_entropy_ = std::numeric_limits<double>::infinity();
};

}  // namespace keel::trainer::rl
