// Several rewards of the same samples, and their weighted sum. Torch-free.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rewards/reward.h"

namespace keel::rewards {

// A sample's score is the sum of weight times score over all parts; each part's own score is extra
// by the part's name, and what it gives besides by "<part>/<name>". The answer is the first part's
// that has one. A sample that one part fails on has that part's error, and no score. The parts are
// asked one after the other.
class WeightedVerifier : public Verifier {
 public:
  struct Part {
    std::string name;
    double weight = 1;
    std::unique_ptr<Verifier> verifier;
  };
  explicit WeightedVerifier(std::vector<Part> parts) : parts_(std::move(parts)) {}

  Status Start() override;
  std::vector<RewardResult> Verify(std::span<const RewardSample> samples) override;
  void Cancel() override;

 private:
  std::vector<Part> parts_;
};

}  // namespace keel::rewards
