#include "rewards/reward_wire.h"

#include <fmt/format.h>

#include <cmath>

#include "common/text.h"

namespace keel::rewards {

namespace {

constexpr size_t kLongestError = 300;  // bytes of an error that a verifier reports

}  // namespace

std::string SampleText(const RewardSample& sample) {
  Json object = {{"id", sample.id}, {"data_source", sample.data_source}};
  if (sample.prompt_ids.empty()) {
    object["prompt"] = sample.prompt;
    object["response"] = sample.response;
  } else {
    if (!sample.prompt.empty()) object["prompt"] = sample.prompt;
    object["prompt_ids"] = sample.prompt_ids;
    object["response_ids"] = sample.response_ids;
  }
  if (sample.turn_rewards) object["turn_rewards"] = *sample.turn_rewards;
  object["ground_truth"] = sample.ground_truth;
  object["extra_info"] = sample.extra_info;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RewardResult> ParseResult(const Json& object) {
  const std::string where = "verifier's result";
  if (!object.is_object())
    return Status(StatusCode::kInvalidData, where + ": expected an object with id and score");
  RewardResult result;
  KEEL_ASSIGN_OR_RETURN(result.id, GetInt(object, "id", where));
  if (object.contains("error") && !object["error"].is_null()) {
    result.error =
        object["error"].is_string() ? object["error"].get<std::string>() : object["error"].dump();
    result.error = Printable(result.error, kLongestError);
    if (result.error.empty()) result.error = "the verifier reported an error without a text";
    return result;
  }
  KEEL_ASSIGN_OR_RETURN(result.score, GetDouble(object, "score", where));
  if (!std::isfinite(result.score)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: id {}: the score is not finite", where, result.id));
  }
  if (object.contains("answer") && !object["answer"].is_null()) {
    const Json& answer = object["answer"];
    result.answer = answer.is_string() ? answer.get<std::string>() : answer.dump();
  }
  for (const auto& [name, value] : object.items()) {
    if (name == "id" || name == "score" || name == "answer") continue;
    if (value.is_number()) result.extra[name] = value;
    // "acc": true, which says whether the answer is right, of programs as of Python functions.
    if (value.is_boolean()) result.extra[name] = value.get<bool>() ? 1 : 0;
  }
  return result;
}

std::vector<RewardResult> AllFailed(std::span<const RewardSample> samples,
                                    const std::string& error) {
  std::vector<RewardResult> results;
  for (const RewardSample& sample : samples) {
    results.push_back({});
    results.back().id = sample.id;
    results.back().error = error;
  }
  return results;
}

}  // namespace keel::rewards
