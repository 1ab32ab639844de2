#include "rewards/reward_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "common/files/whole_file.h"
#include "common/hash.h"
#include "common/process/program_files.h"
#include "common/text.h"
#include "rewards/reward_table.h"

namespace keel::rewards {

namespace {

constexpr size_t kMostFunctions = 32;
constexpr size_t kLongestName = 60;

// It stands in the names of metrics.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return IsLetter(c) || IsDigit(c) || c == '_' || c == '-' || c == '.';
         });
}

Result<RewardFunction> ParseFunction(const Json& entry, const RewardSection& reward, size_t index) {
  RewardFunction function;
  function.key = fmt::format("reward.functions[{}].", index);
  function.verifier = reward;
  // An entry that says what its reward is, says all of it: what the section itself names is of
  // those that do not.
  const bool own = std::any_of(entry.items().begin(), entry.items().end(), [](const auto& item) {
    return item.key() == "type" || item.key() == "command" || item.key() == "url" ||
           item.key() == "custom_reward_function";
  });
  if (own) {
    function.verifier.type = RewardType::kAuto;
    function.verifier.command.clear();
    function.verifier.url.reset();
    function.verifier.custom_reward_function = {};
  }
  options::Schema schema;
  schema.Add("name", function.name, "");
  schema.Add("weight", function.weight, "");
  AddVerifierOptions(schema, "", function.verifier);
  // A value of JSON is one of YAML.
  const Status loaded = schema.Load({fmt::format("reward.functions[{}]", index),
                                     entry.dump(-1, ' ', false, Json::error_handler_t::replace)},
                                    {});
  if (!loaded.ok()) return Status(StatusCode::kConfig, loaded.message());
  if (function.name == kWholeReward || function.name == kWholeScore) {
    return Status(
        StatusCode::kConfig,
        fmt::format("{0}name: {1} is what algorithm.filter_groups.metric and gdpo_reward_keys call "
                    "the sum of all rewards, {2} penalties; give this one another name",
                    function.key, function.name, function.name == kWholeScore ? "before" : "with"));
  }
  if (IsName(function.name)) return function;
  return Status(StatusCode::kConfig,
                fmt::format("{}name: expected a name of letters, digits, _, - and ., which its "
                            "metrics have; found '{}'",
                            function.key, Printable(function.name, kLongestName)));
}

}  // namespace

Result<std::vector<RewardFunction>> RewardFunctions(const RewardSection& reward) {
  std::vector<RewardFunction> functions;
  if (reward.functions.empty()) {
    functions.push_back({"", 1, reward, "reward."});
    return functions;
  }
  if (reward.functions.size() > kMostFunctions) {
    return Status(StatusCode::kConfig,
                  fmt::format("reward.functions: {} entries; expected {} at most",
                              reward.functions.size(), kMostFunctions));
  }
  std::set<std::string> names;
  for (const Json& entry : reward.functions) {
    KEEL_ASSIGN_OR_RETURN(RewardFunction function, ParseFunction(entry, reward, functions.size()));
    if (!names.insert(function.name).second) {
      return Status(StatusCode::kConfig,
                    fmt::format("{}name: {} stands twice", function.key, function.name));
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

Result<std::map<std::string, std::string>> RewardFileDigests(const RewardSection& reward) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<RewardFunction> functions, RewardFunctions(reward));
  std::map<std::string, std::string> digests;
  for (const RewardFunction& function : functions) {
    if (TypeOf(function.verifier) == RewardType::kCommand) {
      for (const auto& [file, digest] : ProgramFileDigests(function.verifier.command))
        digests[fmt::format("content of {} of {}command", file, function.key)] = digest;
    }
    if (TypeOf(function.verifier) != RewardType::kPython) continue;
    const std::string key = function.key + "custom_reward_function.path";
    const std::string path = function.verifier.custom_reward_function.path.value_or("");
    const Result<std::string> content = ReadWholeFile(path);
    if (!content.ok() || content->empty()) {
      return Status(
          StatusCode::kConfig,
          fmt::format("{}: {}: expected a Python file that can be read", key, Printable(path)));
    }
    digests["content of " + key] = "digest " + Hash128(std::as_bytes(std::span(*content))).ToHex();
    // As the runner has them in sys.path.
    const std::vector<std::string> folders = {
        std::filesystem::current_path().native(),
        std::filesystem::absolute(path).parent_path().native()};
    for (const auto& [file, digest] : ImportDigests(path, folders))
      digests[fmt::format("content of {}, which {} imports", file, key)] = digest;
  }
  return digests;
}

}  // namespace keel::rewards
