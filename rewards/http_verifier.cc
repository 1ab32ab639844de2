#include "rewards/http_verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "rewards/reward_wire.h"

namespace keel::rewards {

Status HttpVerifier::Start() {
  const Status reached =
      client_.Connect(std::chrono::steady_clock::now() + request_options().timeout);
  if (reached.ok()) return reached;
  return Status(StatusCode::kConfig,
                fmt::format("reward.url: {}: start the service before the run, or correct the "
                            "address",
                            reached.message()));
}

Result<std::vector<RewardResult>> HttpVerifier::Request(
    std::span<const RewardSample> samples, std::chrono::steady_clock::time_point deadline) {
  std::string body = "{\"samples\":[";
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) body += ',';
    body += SampleText(samples[i]);
  }
  body += "]}";
  KEEL_ASSIGN_OR_RETURN(const std::string text, client_.Post(body, deadline));
  KEEL_ASSIGN_OR_RETURN(const Json answer, ParseJson(text, "reward.url's answer"));
  if (!answer.is_object() || !answer.contains("results") || !answer["results"].is_array()) {
    return Status(StatusCode::kInvalidData,
                  "reward.url's answer: expected {\"results\": [{\"id\": 0, \"score\": 1}, ...]}");
  }
  // Which of two scores is meant, and whose a score of no sample is, nobody can tell: none of such
  // an answer counts.
  std::set<int64_t> open;
  for (const RewardSample& sample : samples) open.insert(sample.id);
  std::vector<RewardResult> results;
  for (const Json& one : answer["results"]) {
    Result<RewardResult> read = ParseResult(one);
    if (!read.ok()) {
      // Of a sample that can be told, no usable score costs that of no other.
      const auto sample = std::find_if(samples.begin(), samples.end(), [&](const RewardSample& s) {
        return one.is_object() && one.value("id", Json()) == s.id;
      });
      if (sample == samples.end()) return read.status();
      RewardResult failed;
      failed.id = sample->id;
      failed.error = read.status().message();
      read = std::move(failed);
    }
    RewardResult& result = *read;
    if (open.erase(result.id) == 0) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("reward.url's answer: a result for id {}, which was not asked for, or "
                      "a second one; \"id\" is that of the sample, not its place",
                      result.id));
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace keel::rewards
