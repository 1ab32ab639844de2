#include "rewards/verifier_factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/process/program_files.h"
#include "common/text.h"
#include "rewards/command_verifier.h"
#include "rewards/http_verifier.h"
#include "rewards/python_verifier.h"
#include "rewards/reward_check.h"
#include "rewards/reward_rules.h"
#include "rewards/weighted_verifier.h"

namespace keel::rewards {

namespace {

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

RequestOptions RequestsOf(const VerifierSection& verifier) {
  RequestOptions options;
  options.batch_size = static_cast<size_t>(verifier.batch_size);
  options.timeout = Milliseconds(verifier.timeout_seconds);
  options.max_retries = static_cast<int>(verifier.max_retries);
  return options;
}

// A token that is sent as it is: a line's end in it would end the header.
Result<std::string> BearerToken(const VerifierSection& verifier, const std::string& key) {
  if (!verifier.bearer_token_env) return std::string();
  const std::string& name = *verifier.bearer_token_env;
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}bearer_token_env: {} {}", key, Printable(name, 60), text));
  };
  const char* const value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): at start
  if (value == nullptr || *value == '\0')
    return refuse("is not set in the environment of this process; expected the token");
  const std::string token = value;
  const bool plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain) return refuse("holds what no token has: a space, a line's end or no ASCII");
  const Status safe = CheckTokenAddress(*verifier.url, key + "url");
  if (!safe.ok()) return safe;
  return token;
}

// Of programs that are started again: that their files are those that the ranks have compared.
using Check = std::function<void()>;
Result<Check> CheckOf(const RewardSection& reward) {
  KEEL_ASSIGN_OR_RETURN(const auto begun, RewardFileDigests(reward));
  if (begun.empty()) return Check();
  return Check([reward, begun] {
    const auto now = RewardFileDigests(reward);
    if (!now.ok()) return;  // what cannot be read does not start either
    const std::string what = FirstChanged(begun, *now);
    if (what.empty()) return;
    throw VerifierChanged(
        StatusCode::kConfig,
        fmt::format("{} has changed since the run began, and a verifier that ended would be "
                    "started with it: put the old content back, and start again",
                    what));
  });
}

Result<RewardPool::Factory> FactoryOf(const RewardFunction& function, const Check& check) {
  const VerifierSection& w = function.verifier;
  const RequestOptions requests = RequestsOf(w);
  switch (TypeOf(w)) {
    case RewardType::kCommand:
      return RewardPool::Factory([command = w.command, requests, check] {
        auto verifier = std::make_unique<CommandVerifier>(command, requests);
        verifier->SetCheck(check);
        return verifier;
      });
    case RewardType::kHttp: {
      HttpOptions http{*w.url, w.ca_file.value_or("")};
      http.keys = function.key;
      KEEL_RETURN_IF_ERROR(CheckHttpUrl(http.url, function.key + "url"));
      KEEL_ASSIGN_OR_RETURN(http.bearer_token, BearerToken(w, function.key));
      return RewardPool::Factory([http = std::move(http), requests] {
        return std::make_unique<HttpVerifier>(http, requests);
      });
    }
    case RewardType::kPython: {
      PythonFunction python;
      python.python = PythonProgram(w.python);
      python.path = *w.custom_reward_function.path;
      python.name = w.custom_reward_function.name;
      python.kwargs = w.custom_reward_function.reward_kwargs;
      python.start_limit = Milliseconds(w.start_timeout_seconds);
      python.key = function.key;
      return RewardPool::Factory([python = std::move(python), requests, check] {
        auto verifier = std::make_unique<PythonVerifier>(python, requests);
        verifier->SetCheck(check);
        return verifier;
      });
    }
    default:
      return RewardPool::Factory(
          [options = RuleOptionsOf(w)] { return ValueOrThrow(MakeRuleVerifier(options)); });
  }
}

}  // namespace

Result<RewardPool::Factory> MakeVerifierFactory(const RewardSection& reward) {
  KEEL_RETURN_IF_ERROR(CheckReward(reward));
  KEEL_ASSIGN_OR_RETURN(const std::vector<RewardFunction> functions, RewardFunctions(reward));
  struct Part {
    std::string name;
    double weight;
    RewardPool::Factory make;
  };
  std::vector<Part> parts;
  KEEL_ASSIGN_OR_RETURN(const Check check, CheckOf(reward));
  for (const RewardFunction& function : functions) {
    KEEL_ASSIGN_OR_RETURN(RewardPool::Factory make, FactoryOf(function, check));
    parts.push_back({function.name, function.weight, std::move(make)});
  }
  if (reward.functions.empty()) return parts.front().make;
  return RewardPool::Factory([parts = std::move(parts)]() -> std::unique_ptr<Verifier> {
    std::vector<WeightedVerifier::Part> made;
    for (const Part& part : parts) made.push_back({part.name, part.weight, part.make()});
    return std::make_unique<WeightedVerifier>(std::move(made));
  });
}

size_t PoolBatch(const RewardSection& reward) {
  const bool one_by_one = AnyFunction(
      reward, [](const VerifierSection& w) { return TypeOf(w) == RewardType::kPython; });
  return one_by_one ? 1 : static_cast<size_t>(reward.batch_size);
}

std::vector<std::string> DescribeRewards(const RewardSection& reward) {
  std::vector<std::string> lines;
  for (const RewardFunction& function : ValueOrThrow(RewardFunctions(reward))) {
    const VerifierSection& w = function.verifier;
    std::string line = function.name.empty()
                           ? "reward"
                           : fmt::format("reward {} (weight {})", function.name, function.weight);
    if (TypeOf(w) == RewardType::kPython) {
      line += fmt::format(" from {} of {}, run by {} in {} processes a rank",
                          w.custom_reward_function.name, *w.custom_reward_function.path,
                          PythonProgram(w.python), reward.num_workers);
    } else if (function.name.empty()) {
      continue;
    } else {
      line += fmt::format(" by {}", NameOf(TypeOf(w)));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::chrono::milliseconds CollectLimit(const RewardSection& reward, int64_t samples) {
  // A worker may take one sample at a time when they trickle in.
  const int64_t rounds = (samples + reward.num_workers - 1) / reward.num_workers + 1;
  // A Python function that ended may take as long again to come back.
  double each = 0;
  for (const RewardFunction& function : ValueOrThrow(RewardFunctions(reward))) {
    const VerifierSection& w = function.verifier;
    const bool starts = TypeOf(w) == RewardType::kPython;
    each += (w.timeout_seconds + (starts ? w.start_timeout_seconds : 0)) *
            static_cast<double>(1 + w.max_retries);
  }
  return std::chrono::milliseconds(
      static_cast<int64_t>(1000 * each * static_cast<double>(std::max<int64_t>(1, rounds))));
}

}  // namespace keel::rewards
