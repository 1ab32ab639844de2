#include "rewards/http_verifier.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "common/json_builder.h"
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

namespace {

// One without a usable score, of a sample that can be told, is that sample's failure alone.
Result<RewardResult> ResultOrFailure(const Json& one) {
  Result<RewardResult> result = ParseResult(one);
  if (result.ok() || !one.is_object()) return result;
  const Result<int64_t> id = GetInt(one, "id", "");
  if (!id.ok()) return result;
  RewardResult failed;
  failed.id = *id;
  failed.error = result.status().message();
  return failed;
}

}  // namespace

Status HttpVerifier::Request(std::span<const RewardSample> samples,
                             std::chrono::steady_clock::time_point deadline,
                             std::vector<RewardResult>* results) {
  std::string body = "{\"samples\":[";
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) body += ',';
    body += SampleText(samples[i]);
  }
  body += "]}";
  KEEL_ASSIGN_OR_RETURN(const std::string text, client_.Post(body, deadline));
  KEEL_ASSIGN_OR_RETURN(const Json answer, ParsePythonJson(text, "reward.url's answer"));
  if (!answer.is_object() || !answer.contains("results") || !answer["results"].is_array()) {
    return Status(StatusCode::kInvalidData,
                  "reward.url's answer: expected {\"results\": [{\"id\": 0, \"score\": 1}, ...]}");
  }
  // Which of two scores is meant, and whose a score of no sample is, nobody can tell: none of such
  // an answer counts.
  std::set<int64_t> open;
  for (const RewardSample& sample : samples) open.insert(sample.id);
  std::vector<RewardResult> found;
  for (const Json& one : answer["results"]) {
    KEEL_ASSIGN_OR_RETURN(RewardResult result, ResultOrFailure(one));
    if (open.erase(result.id) == 0) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("reward.url's answer: a result for id {}, which was not asked for, or "
                      "a second one; \"id\" is that of the sample, not its place",
                      result.id));
    }
    found.push_back(std::move(result));
  }
  *results = std::move(found);
  return Status::Ok();
}

}  // namespace keel::rewards
