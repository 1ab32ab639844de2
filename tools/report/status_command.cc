// keel status: where a run stands: its last step, its newest checkpoint, and, of a run with rollout
// workers, what its desk says at this moment.

#include <fmt/format.h>

#include <memory>
#include <string>

#include "common/json.h"
#include "common/text.h"
#include "tools/command.h"
#include "tools/report/run_status.h"
#include "trainer/metrics/step_parts.h"

namespace keel::tools {

namespace {

// For the desk to answer.
constexpr std::chrono::milliseconds kPatience{5'000};

void PrintDesk(const Json& desk) {
  if (desk.contains("problem")) {
    fmt::print("desk        {}\n", PrintableLines(desk["problem"].get<std::string>()));
    return;
  }
  fmt::print("weights     version {}, digest {}\n", desk["version"].get<int64_t>(),
             desk["digest"].get<std::string>());
  for (const auto& [name, stream] : desk["streams"].items()) {
    fmt::print("samples     {}: {} done, {} at workers, {} waiting, from position {} on\n", name,
               stream["finished"].get<int64_t>(), stream["running"].get<int64_t>(),
               stream["waiting"].get<int64_t>(), stream["frontier"].get<int64_t>());
  }
  fmt::print("workers     {} there, {} lost, {} tokens taken up by others\n",
             desk["workers"].size(), desk["lost"].get<int64_t>(),
             desk["reassigned_tokens"].get<int64_t>());
  for (const Json& worker : desk["workers"]) {
    fmt::print(
        "  {}: {}, version {}, {} samples, {} tokens so far, idle {:.0f} %, heard {:.1f} s ago\n",
        PrintableLines(worker["name"].get<std::string>()), worker["state"].get<std::string>(),
        worker["version"].get<int64_t>(), worker["samples"].get<int64_t>(),
        worker["tokens"].get<int64_t>(), 100 * worker["idle"].get<double>(),
        worker["silent_s"].get<double>());
  }
}

void Print(const Json& state) {
  fmt::print("run         {}\n", PrintableLines(state["run"].get<std::string>()));
  if (state["step"].is_null()) {
    fmt::print("step        {}\n", state["metrics"].get<bool>()
                                       ? "none yet"
                                       : "not known: there is no metrics.jsonl yet, or "
                                         "trainer.logger is without jsonl");
  } else {
    const Json& data = state["step"]["data"];
    std::string text = fmt::format("step        {}", state["step"]["step"].get<int64_t>());
    const auto add = [&](std::string_view key) {
      if (data.contains(key) && data[key].is_number())
        text += fmt::format("  {} {:.4g}", key, data[key].get<double>());
    };
    for (const trainer::Figure& figure : trainer::kStepFigures) add(figure.metric);
    for (const std::string_view key : trainer::kStepSeconds) add(key);
    fmt::print("{}\n", text);
  }
  fmt::print("checkpoint  {}\n", state["checkpoint"].is_null()
                                     ? "none"
                                     : fmt::format("step {}", state["checkpoint"].get<int64_t>()));
  if (!state["desk"].is_null()) PrintDesk(state["desk"]);
}

}  // namespace

void AddStatusCommand(CLI::App& app, CommandContext& context) {
  auto folder = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* status =
      app.add_subcommand("status", "Where a run stands: step, checkpoint, rollout workers");
  status->add_option("RUN", *folder, "Its folder (trainer.default_local_dir)")->required();
  status->add_flag("--json", *json, "One JSON object");
  status->footer(
      "Examples:\n"
      "  keel status runs/quickstart\n"
      "  keel status runs/quickstart --json\n"
      "  keel status runs/quickstart --json > state.json");
  status->callback([folder, json, &context] {
    const Result<Json> state = RunStatus(*folder, kPatience);
    ThrowIfError(state.status());
    if (*json) {
      fmt::print("{}\n", state->dump(-1, ' ', false, Json::error_handler_t::replace));
    } else {
      Print(*state);
    }
    if (state->at("desk").is_object() && state->at("desk").contains("problem"))
      context.exit_code = ExitCodeFor(StatusCode::kUnavailable);
  });
}

}  // namespace keel::tools
