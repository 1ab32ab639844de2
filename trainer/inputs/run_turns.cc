#include "trainer/inputs/run_turns.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "common/hash.h"
#include "common/text.h"
#include "trainer/data/chat_rules.h"

namespace keel::trainer {

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
  if (model.text.chat == nullptr || model.text.chat->chatml) {
    return refuse(
        ".enable: the chat template of this model, Keel's ChatML, shows no tools: name "
        "one that does as data.chat_template");
  }
  KEEL_ASSIGN_OR_RETURN(std::vector<turns::ToolSpec> tools,
                        turns::LoadTools(options.tool_config_path.value_or("")));
  for (const turns::ToolSpec& tool : tools) {
    const double seconds = static_cast<double>(tool.timeout.count()) / 1000;
    if (seconds < config.trainer.deadline_seconds) continue;
    return refuse(
        fmt::format(".tool_config_path: the tool {} with timeout_seconds {} may keep a "
                    "rank longer than others wait for it, trainer.deadline_seconds {}: "
                    "raise that",
                    Printable(tool.name, 60), seconds, config.trainer.deadline_seconds));
  }
  const ChatRules& rules = *model.text.chat;
  const model::ChatTemplate& chat = rules.with_tools ? *rules.with_tools : rules.chat;
  turns::ToolFormat format = options.format;
  if (format == turns::ToolFormat::kAuto) {
    const auto found = turns::FormatOf(chat.source());
    if (!found) {
      return refuse(
          ".format: the chat template writes calls in no way that is known here: say "
          "hermes, llama3_json or mistral, which the model must have learnt");
    }
    format = *found;
  }
  turns::TurnTextOptions text{.chat = chat, .arguments = rules.arguments};
  text.tools = turns::SchemasOf(tools);
  text.clock = ClockOf(rules);
  text.stop_ids = StopTokens(model);
  KEEL_ASSIGN_OR_RETURN(turns::TurnText between,
                        turns::TurnText::Make(std::move(text), *model.tokenizer));
  return std::make_unique<const RunTurns>(RunTurns{
      options, std::move(tools),
      turns::TurnRule(options, format, *model.tokenizer, StopTokens(model)), std::move(between)});
}

std::string ToolsDigest(const RunTurns& turns) {
  std::string all;
  for (const turns::ToolSpec& tool : turns.tools) {
    all += Json{tool.schema, tool.command, tool.url.value_or(""), tool.timeout.count()}.dump(
               -1, ' ', false, Json::error_handler_t::replace) +
           "\n";
  }
  return Hash128(std::as_bytes(std::span(all))).ToHex();
}

}  // namespace keel::trainer
