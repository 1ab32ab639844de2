#include "rewards/python_verifier.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "common/text.h"
#include "rewards/python_runner.h"

namespace keel::rewards {

namespace {

constexpr size_t kLongestReason = 1200;  // of a file that is refused

RequestOptions OneAtATime(RequestOptions options) {
  options.batch_size = 1;
  return options;
}

LineGreeting GreetingOf(const PythonFunction& function) {
  const Json first = {
      {"path", function.path}, {"name", function.name}, {"kwargs", function.kwargs}};
  LineGreeting greeting;
  greeting.text = first.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  greeting.limit = function.start_limit;
  greeting.limit_name = function.key + "start_timeout_seconds";
  greeting.take = [key = function.key, path = function.path](std::string_view line) -> Status {
    const auto answer = ParseJson(line, key + "python's output");
    if (answer.ok() && answer->is_object() && answer->contains("ready")) return Status::Ok();
    const std::string why = answer.ok() && answer->is_object() && answer->contains("refused")
                                ? (*answer)["refused"].dump()
                                : std::string(line);
    return Status(StatusCode::kConfig,
                  fmt::format("{}custom_reward_function.path: {}: expected a Python file with the "
                              "function {}custom_reward_function.name: {}",
                              key, Printable(path), key, Printable(why, kLongestReason)));
  };
  return greeting;
}

}  // namespace

PythonVerifier::PythonVerifier(const PythonFunction& function, const RequestOptions& options)
    : CommandVerifier(function.key + "python", function.key + "timeout_seconds",
                      {function.python, "-u", "-c", kPythonRunner, function.path, function.name},
                      OneAtATime(options)),
      limit_(options.timeout) {
  program().SetGreeting(GreetingOf(function));
}

Status PythonVerifier::Request(std::span<const RewardSample> samples,
                               std::chrono::steady_clock::time_point /*deadline*/,
                               std::vector<RewardResult>* results) {
  // The limit is the call's: what a restart takes has one of its own.
  KEEL_RETURN_IF_ERROR(Start());
  return CommandVerifier::Request(samples, std::chrono::steady_clock::now() + limit_, results);
}

std::string PythonProgram(const std::optional<std::string>& configured) {
  if (configured) return *configured;
  const char* const python = std::getenv("KEEL_PYTHON");  // NOLINT(concurrency-mt-unsafe): at start
  return python != nullptr && *python != '\0' ? python : "python3";
}

}  // namespace keel::rewards
