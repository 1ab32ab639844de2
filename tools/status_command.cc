// keel status: where a run stands: its last step, its newest checkpoint, and, of a run with rollout
// workers, what its desk says at this moment.

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/run/tracker.h"
#include "common/file_system.h"
#include "common/json.h"
#include "common/text.h"
#include "tools/command.h"
#include "trainer/desk/desk_file.h"

namespace keel::tools {

namespace {

using trainer::desk::DeskClient;

// For the desk to answer.
constexpr std::chrono::milliseconds kPatience{5'000};
// Behind which the last line of metrics.jsonl begins.
constexpr std::streamoff kTailBytes = 1 << 20;

// The last whole line with a step; null: none.
Json LastStep(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl", std::ios::ate);
  if (!file) return nullptr;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  Json last;
  for (std::string line; std::getline(file, line);) {
    const Result<Json> record = ParseJson(line, "metrics.jsonl");
    if (record.ok() && record->is_object() && record->contains("step") &&
        record->contains("data") && (*record)["data"].contains("training/global_step"))
      last = *record;
  }
  return last;
}

Result<Json> AskDesk(const trainer::desk::DeskAddress& address) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<DeskClient> desk,
                        DeskClient::Connect(address, kPatience, kPatience));
  KEEL_RETURN_IF_ERROR(desk->Send(trainer::desk::Ask{}));
  KEEL_ASSIGN_OR_RETURN(const auto message, desk->Receive(kPatience));
  const auto* told = message ? std::get_if<trainer::desk::Told>(&*message) : nullptr;
  if (told == nullptr) return Status(StatusCode::kDeadlineExceeded, "it does not answer");
  return ParseJson(told->state, "the desk's answer");
}

// {"run", "step", "checkpoint", "desk"}; what is not there is null.
Result<Json> Look(const std::string& folder) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, false));
  Json state = {
      {"run", folder}, {"step", LastStep(folder)}, {"checkpoint", nullptr}, {"desk", nullptr}};
  if (const auto saved = checkpoint::ReadTracker(*files)) state["checkpoint"] = *saved;
  const auto address = trainer::desk::ReadDeskFile(folder);
  if (!address.ok()) {
    if (address.status().code() == StatusCode::kNotFound) return state;
    return address.status();
  }
  const Result<Json> desk = AskDesk(*address);
  if (desk.ok()) {
    state["desk"] = *desk;
  } else {
    state["desk"] = {
        {"problem", fmt::format("the desk at {}:{} is not reached: {}; the trainers are gone, "
                                "or this machine cannot reach theirs",
                                address->host, address->port, desk.status().message())}};
  }
  return state;
}

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
    fmt::print("step        none yet\n");
  } else {
    const Json& data = state["step"]["data"];
    std::string text = fmt::format("step        {}", state["step"]["step"].get<int64_t>());
    for (const char* key :
         {"critic/score/mean", "loss_metrics/global_avg_loss", "actor/loss", "timing_s/step"}) {
      if (data.contains(key) && data[key].is_number())
        text += fmt::format("  {} {:.4g}", key, data[key].get<double>());
    }
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
    const Result<Json> state = Look(*folder);
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
