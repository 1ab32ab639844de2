#include "rewards/weighted_verifier.h"

#include <cmath>
#include <utility>

namespace keel::rewards {

Status WeightedVerifier::Start() {
  for (const Part& part : parts_) {
    const Status started = part.verifier->Start();
    if (!started.ok()) return started.WithContext("reward " + part.name);
  }
  return Status::Ok();
}

void WeightedVerifier::Cancel() {
  for (const Part& part : parts_) part.verifier->Cancel();
}

std::vector<RewardResult> WeightedVerifier::Verify(std::span<const RewardSample> samples) {
  std::vector<RewardResult> sums(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) sums[i].id = samples[i].id;
  for (const Part& part : parts_) {
    // 1. A sample that has failed is not asked about again.
    std::vector<RewardSample> open;
    std::vector<size_t> places;
    for (size_t i = 0; i < samples.size(); ++i) {
      if (!sums[i].ok()) continue;
      open.push_back(samples[i]);
      places.push_back(i);
    }
    std::vector<RewardResult> results = part.verifier->Verify(open);
    // 2. What it says is added to what the others said.
    for (size_t k = 0; k < results.size(); ++k) {
      RewardResult& sum = sums[places[k]];
      RewardResult& result = results[k];
      if (!result.ok()) {
        sum.error = "reward " + part.name + ": " + result.error;
        sum.gone = result.gone;
        continue;
      }
      sum.score += part.weight * result.score;
      sum.extra[part.name] = result.score;
      for (const auto& [name, value] : result.extra) sum.extra[part.name + "/" + name] = value;
      if (sum.answer.empty()) sum.answer = std::move(result.answer);
    }
  }
  for (RewardResult& sum : sums) {
    if (sum.ok() && !std::isfinite(sum.score)) sum.error = "the weighted sum is not finite";
  }
  return sums;
}

}  // namespace keel::rewards
