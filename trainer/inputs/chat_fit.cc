#include "trainer/inputs/chat_fit.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "common/text.h"
#include "model/chat_template/chat_template.h"

namespace keel::trainer {

namespace {

using Found = Result<std::optional<model::ChatTemplate>>;

Found FromFolder(const std::string& folder, const std::string& name) {
  return folder.empty() ? Found(std::nullopt) : model::LoadChatTemplate(folder, name);
}

Result<std::string> ReadWhole(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{4} << 20;
  const auto slash = path.rfind('/');
  const bool here = slash == std::string::npos;
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(here ? "." : path.substr(0, slash + 1),
                                                           false, LinkPolicy::kFollow));
  return ReadDownloadedOrEmpty(*fs, here ? path : path.substr(slash + 1), kMaxBytes);
}

// What data.chat_template names, but for chatml.
Result<model::ChatTemplate> Named(const std::string& given, const std::string& folder) {
  const bool is_jinja = given.find('{') != std::string::npos;
  if (!is_jinja) {
    const Found found = FromFolder(folder, given);
    if (found.ok() && *found) return **found;
  }
  const Result<std::string> text = is_jinja ? Result<std::string>(given) : ReadWhole(given);
  if (!text.ok()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("data.chat_template is chatml, the name of one of the model's, Jinja, "
                    "or a file of it: {}",
                    text.status().message()));
  }
  const Result<model::ChatTemplate> parsed =
      model::ChatTemplate::Parse(*text, is_jinja ? "data.chat_template" : given);
  if (!parsed.ok()) return Status(StatusCode::kConfig, parsed.status().message());
  if (folder.empty()) return *parsed;
  KEEL_ASSIGN_OR_RETURN(Json tokens, model::LoadSpecialTokens(folder));
  return parsed->WithSpecialTokens(std::move(tokens));
}

std::string Unusable(const char* what, const std::string& folder, const Status& why) {
  return fmt::format("{} of {} cannot be used: {}", what, folder, why.message());
}

std::string WarningOf(const ChatRules& rules) {
  const auto asks = [](const model::ChatTemplate& chat) {
    return chat.source().find("strftime_now") != std::string::npos;
  };
  if (rules.todays_date || !(asks(rules.chat) || (rules.with_tools && asks(*rules.with_tools))))
    return "";
  return "the chat template asks for the date: in training it is told 26 July 2024, so that rows "
         "are the same at every start; data.apply_chat_template_kwargs may give another "
         "(date_string, where the template reads it)";
}

}  // namespace

Result<ChatFit> FitChat(const ChatChoice& choice, const std::string& folder, bool chatml) {
  ChatFit fit;
  ChatRules rules{.chat = ChatMl(),
                  .arguments = choice.arguments,
                  .train_on = choice.train_on,
                  .todays_date = choice.todays_date};
  const Found found = choice.source.empty() ? FromFolder(folder, "") : Found(std::nullopt);
  if (choice.source == "chatml") {
    rules.chatml = true;
  } else if (!choice.source.empty()) {
    KEEL_ASSIGN_OR_RETURN(rules.chat, Named(choice.source, folder));
  } else if (!found.ok()) {
    fit.missing = Unusable("the chat template", folder, found.status());
    fit.unusable = true;
    return fit;
  } else if (*found) {
    rules.chat = **found;
    if (Found tools = FromFolder(folder, "tool_use"); tools.ok()) {
      rules.with_tools = *tools;
    } else if (tools.status().code() != StatusCode::kNotFound) {
      rules.no_tools = Unusable("the chat template 'tool_use'", folder, tools.status());
    }
  } else if (chatml) {
    rules.chatml = true;
  } else {
    fit.missing = fmt::format(
        "{} has no chat template: give it a chat_template.jinja, or name one as data.chat_template",
        folder);
    return fit;
  }
  fit.warning = WarningOf(rules);
  fit.rules = std::make_shared<const ChatRules>(std::move(rules));
  return fit;
}

}  // namespace keel::trainer
