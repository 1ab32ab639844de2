#include "rewards/command_verifier.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "common/text.h"
#include "rewards/reward_wire.h"

namespace keel::rewards {

CommandVerifier::CommandVerifier(std::string name, std::string limit,
                                 std::vector<std::string> command, const RequestOptions& options)
    : RetryingVerifier(options), program_(std::move(name), std::move(limit), std::move(command)) {}

Status CommandVerifier::Request(std::span<const RewardSample> samples,
                                std::chrono::steady_clock::time_point deadline,
                                std::vector<RewardResult>* results) {
  std::set<int64_t> open;
  LineExchange exchange;
  for (const RewardSample& sample : samples) {
    exchange.text += SampleText(sample) + "\n";
    open.insert(sample.id);
  }
  exchange.deadline = deadline;
  exchange.open = [&] { return !open.empty(); };
  exchange.missing = [&] { return fmt::format("{} of {} results", open.size(), samples.size()); };
  exchange.take = [&](std::string_view line) -> Status {
    const auto object = ParseJson(line, program_.Describe() + "'s output");
    if (!object.ok()) {
      return Status(StatusCode::kInvalidData,
                    object.status().message() + ": '" + Printable(line) + "'");
    }
    KEEL_ASSIGN_OR_RETURN(RewardResult result, ParseResult(*object));
    // Which of two scores is meant, and whose a score of no sample is, nobody can tell: none
    // counts.
    if (open.erase(result.id) == 0) {
      results->clear();
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: a result for id {}, which was not asked for",
                                program_.Describe(), result.id));
    }
    results->push_back(std::move(result));
    return Status::Ok();
  };
  return program_.Exchange(exchange);
}

}  // namespace keel::rewards
