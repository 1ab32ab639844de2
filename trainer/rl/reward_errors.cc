#include "trainer/rl/reward_errors.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/text.h"

namespace keel::trainer::rl {

namespace {

constexpr size_t kKindBytes = 80;   // of an error's beginning, by which its kind is told
constexpr size_t kSaidBytes = 400;  // of an error that is shown
constexpr const char* kOtherKinds = "(other)";

// Its beginning with # for each number.
std::string KindOf(const std::string& error) {
  std::string kind;
  for (size_t i = 0; i < error.size() && kind.size() < kKindBytes; ++i) {
    if (!IsDigit(error[i])) {
      kind += error[i];
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

// Whether a count that went from `before` to `after` passed 1, 10, 100, ...
bool PassesAPowerOfTen(int64_t before, int64_t after) {
  int64_t next = 1;
  while (next <= before) next *= 10;
  return after >= next;
}

std::string Shown(const Response& response) {
  return fmt::format("row {}: {}", response.row, Printable(response.problem(), kSaidBytes));
}

const Response* FirstFailed(std::span<const Response> responses) {
  const auto found =
      std::find_if(responses.begin(), responses.end(), [](auto& r) { return r.failed(); });
  return found == responses.end() ? nullptr : &*found;
}

}  // namespace

int64_t CountFailed(std::span<const Response> responses) {
  return std::count_if(responses.begin(), responses.end(), [](auto& r) { return r.failed(); });
}

void RewardErrors::Judge(std::span<const Response> responses, const std::string& batch) {
  Count(responses, batch);
  ThrowIfError(Check(responses, batch));
}

void RewardErrors::Count(std::span<const Response> responses, const std::string& batch) {
  struct Found {
    int64_t count = 0;
    const Response* first = nullptr;
  };
  std::map<std::string, Found> found;
  for (const Response& r : responses) {
    if (!r.failed()) continue;
    std::string kind = KindOf(r.problem());
    if (!kinds_.contains(kind) && kinds_.size() >= kMostKinds) kind = kOtherKinds;
    kinds_.try_emplace(kind, 0);
    Found& one = found[kind];
    if (one.first == nullptr) one.first = &r;
    ++one.count;
  }
  for (const auto& [kind, one] : found) {
    int64_t& total = kinds_[kind];
    const int64_t before = total;
    total += one.count;
    if (!warn_ || !PassesAPowerOfTen(before, total)) continue;
    warn_(fmt::format(
        "no score for {} of the {} responses of {} ({} so far; reward.on_error: {}){}: {}",
        one.count, responses.size(), batch, total, NameOf(policy_),
        kind == kOtherKinds ? fmt::format(", errors of more than {} kinds", kMostKinds) : "",
        Shown(*one.first)));
  }
}

Status RewardErrors::Check(std::span<const Response> responses, const std::string& batch) const {
  const Response* const first = FirstFailed(responses);
  if (first == nullptr) return Status::Ok();
  if (policy_ == rewards::OnRewardError::kStop) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("reward.on_error: stop: a response of {} has no score: {}", batch,
                              Shown(*first)));
  }
  if (rewards::GoesOnWithoutAnyScore(policy_) ||
      CountFailed(responses) < static_cast<int64_t>(responses.size()))
    return Status::Ok();
  return Status(
      StatusCode::kUnavailable,
      fmt::format("none of the {} responses of {} has a score, the verifier failed for each: {}; "
                  "mend the verifier (docs/rewards.md) and start again, from the last checkpoint, "
                  "or set reward.on_error to zero_always or exclude_always to go on regardless",
                  responses.size(), batch, Shown(*first)));
}

}  // namespace keel::trainer::rl
