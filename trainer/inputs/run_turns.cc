#include "trainer/inputs/run_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/hash.h"
#include "common/process/program_files.h"
#include "common/text.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer {

namespace {

// Ranks wait for one that waits for it.
Status CheckPatience(const Config& config, const turns::ToolSpec& server) {
  const double seconds = static_cast<double>(server.timeout.count()) / 1000;
  if (seconds < config.trainer.deadline_seconds) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout.multi_turn.{}: the {} {} with "
                            "timeout_seconds {} may keep a rank longer than others wait for it, "
                            "trainer.deadline_seconds {}: raise that",
                            server.is_environment ? "interaction_config_path" : "tool_config_path",
                            server.is_environment ? "environment" : "tool",
                            Printable(server.name, 60), seconds, config.trainer.deadline_seconds));
}

}  // namespace

Result<std::unique_ptr<const RunTurns>> OpenRunTurns(const Config& config,
                                                     const ModelSource& model) {
  const turns::MultiTurnSection& options = config.actor_rollout_ref.rollout.multi_turn;
  if (!options.enable) return std::unique_ptr<const RunTurns>();
  const std::string key = "actor_rollout_ref.rollout.multi_turn";
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kConfig, key + text);
  };
  if (model.tokenizer == nullptr) {
    return refuse(
        ".enable: calls are text, and the model has no tokenizer: give it one, or name "
        "one as data.tokenizer");
  }
  if (!model.text.no_chat.empty())
    return refuse(".enable: tools' texts need a chat template: " + model.text.no_chat);
  std::vector<turns::ToolSpec> tools, environments;
  if (options.tool_config_path) {
    KEEL_ASSIGN_OR_RETURN(tools, turns::LoadTools(*options.tool_config_path));
  }
  if (options.interaction_config_path) {
    KEEL_ASSIGN_OR_RETURN(environments, turns::LoadEnvironments(*options.interaction_config_path));
  }
  for (const turns::ToolSpec& tool : tools) KEEL_RETURN_IF_ERROR(CheckPatience(config, tool));
  for (const turns::ToolSpec& environment : environments) {
    KEEL_RETURN_IF_ERROR(CheckPatience(config, environment));
    const bool is_tool = std::any_of(tools.begin(), tools.end(), [&](const auto& tool) {
      return tool.name == environment.name;
    });
    if (is_tool)
      return refuse(fmt::format(".interaction_config_path: {} is the name of a tool, too",
                                Printable(environment.name, 60)));
  }
  if (!tools.empty() && (model.text.chat == nullptr || model.text.chat->chatml)) {
    return refuse(
        ".tool_config_path: the chat template of this model, Keel's ChatML, shows no tools: name "
        "one that does as data.chat_template");
  }
  const std::shared_ptr<const ChatRules> held =
      model.text.chat == nullptr ? ChatMlRules() : model.text.chat;
  const ChatRules& rules = *held;
  if (!tools.empty() && !rules.no_tools.empty())
    return refuse(".enable: tools' texts need a chat template: " + rules.no_tools);
  const model::ChatTemplate& chat = rules.with_tools ? *rules.with_tools : rules.chat;
  std::optional<turns::ToolFormat> format;
  if (!tools.empty()) {
    format = options.format == turns::ToolFormat::kAuto ? turns::FormatOf(chat.source())
                                                        : options.format;
    if (!format) {
      return refuse(
          ".format: the chat template writes calls in no way that is known here: say "
          "hermes, llama3_json, mistral, qwen3_coder, granite or olmo3, which the model must have "
          "learnt");
    }
  }
  turns::TurnTextOptions text{.chat = chat, .arguments = rules.arguments};
  if (!tools.empty()) text.tools = turns::SchemasOf(tools);
  text.shows_tools = !tools.empty();
  text.shows_users = !environments.empty();
  text.clock = ClockOf(rules);
  text.stop_ids = StopTokens(model);
  KEEL_ASSIGN_OR_RETURN(turns::TurnText between,
                        turns::TurnText::Make(std::move(text), *model.tokenizer));
  turns::TurnRule rule(options, format, *model.tokenizer, StopTokens(model),
                       turns::SchemasOf(tools));
  return std::make_unique<const RunTurns>(RunTurns{
      options, std::move(tools), std::move(environments), std::move(rule), std::move(between)});
}

std::string ToolsDigest(const RunTurns& turns) {
  std::string all;
  const auto add = [&all](const Json& who, const turns::ToolSpec& server) {
    Json facts{who, server.command, server.url.value_or(""), server.timeout.count()};
    for (const auto& [file, digest] : ProgramFileDigests(server.command))
      facts.push_back({file, digest});
    all += facts.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  for (const turns::ToolSpec& tool : turns.tools) add(tool.schema, tool);
  for (const turns::ToolSpec& environment : turns.environments) add(environment.name, environment);
  return Hash128(std::as_bytes(std::span(all))).ToHex();
}

std::string ChatFingerprint(const ModelSource& model) {
  return model.text.chat == nullptr ? std::string() : FingerprintOf(*model.text.chat);
}

}  // namespace keel::trainer
