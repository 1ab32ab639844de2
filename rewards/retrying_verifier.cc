#include "rewards/retrying_verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

namespace keel::rewards {

std::vector<RewardResult> RetryingVerifier::Verify(std::span<const RewardSample> samples) {
  std::map<int64_t, RewardResult> known;
  for (size_t begin = 0; begin < samples.size(); begin += options_.batch_size) {
    const auto batch =
        samples.subspan(begin, std::min(options_.batch_size, samples.size() - begin));
    std::vector<RewardSample> open(batch.begin(), batch.end());
    std::string problem;
    bool gone = false;
    for (int attempt = 0; attempt <= options_.max_retries && !open.empty(); ++attempt) {
      const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
      std::vector<RewardResult> results;
      const Status status = Request(open, deadline, &results);
      problem = status.ok() ? "the verifier gave no result for it" : status.message();
      gone = status.code() == StatusCode::kUnavailable;
      for (RewardResult& result : results) {
        const int64_t id = result.id;
        known.emplace(id, std::move(result));
      }
      std::erase_if(open, [&](const RewardSample& sample) { return known.contains(sample.id); });
      if (!status.ok() && cancelled_) break;
      if (gone && attempt < options_.max_retries && !open.empty()) {
        const auto again = pause() * (int64_t{1} << std::min(attempt, 16));
        Wait(std::min(deadline, std::chrono::steady_clock::now() + again));
      }
    }
    for (const RewardSample& sample : open) {
      RewardResult failed;
      failed.id = sample.id;
      failed.error = fmt::format("{} ({} tries)", problem, options_.max_retries + 1);
      failed.gone = gone;
      known.emplace(sample.id, std::move(failed));
    }
  }
  std::vector<RewardResult> results;
  for (const RewardSample& sample : samples) results.push_back(known.at(sample.id));
  return results;
}

void RetryingVerifier::Wait(std::chrono::steady_clock::time_point until) const {
  constexpr std::chrono::milliseconds kLook{20};
  while (!cancelled_ && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kLook);
}

void RetryingVerifier::Cancel() {
  cancelled_ = true;
  Interrupt();
}

}  // namespace keel::rewards
