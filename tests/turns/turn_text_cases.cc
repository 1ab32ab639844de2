// What stands between two turns, for the Python oracle, which has it from transformers' renderings.
//
// turn_text_cases TOKENIZER_FOLDER reads lines of {"source", "extra", "tools", "stops": [id],
// "calls": [{"name", "id"}], "texts"} or, of an environment, {..., "told": true, "texts": [one]},
// and writes {"text"} or {"error"} for each. Of {"source", "tools", "turn"} it writes the calls in
// the turn, as that template's format has them: {"calls": [{"name", "arguments", "problem"}]}, or
// null.
#include <iostream>
#include <string>

#include "model/chat_template/chat_template.h"
#include "model/tokenizer/files/open_tokenizer.h"
#include "turns/turn_text.h"

namespace keel::turns {
namespace {

Result<std::string> TextOf(const Json& json, const model::Tokenizer& tokenizer) {
  KEEL_ASSIGN_OR_RETURN(
      model::ChatTemplate chat,
      model::ChatTemplate::Parse(json.at("source").get<std::string>(), "the case"));
  TurnTextOptions options{std::move(chat)};
  options.arguments = json.at("extra");
  options.tools = json.at("tools");
  options.clock = [] { return std::chrono::system_clock::from_time_t(1750000000); };
  options.stop_ids = json.at("stops").get<std::vector<int32_t>>();
  const bool told = json.value("told", false);
  options.shows_tools = !told;
  options.shows_users = told;
  KEEL_ASSIGN_OR_RETURN(const TurnText text, TurnText::Make(std::move(options), tokenizer));
  std::vector<ToolCall> calls(1);
  calls[0].to_environment = told;
  if (!told) {
    calls.clear();
    for (const Json& one : json.at("calls")) {
      ToolCall call;
      call.name = one.at("name").get<std::string>();
      call.id = one.at("id").get<std::string>();
      calls.push_back(std::move(call));
    }
  }
  return text.Text(calls, json.at("texts").get<std::vector<std::string>>());
}

Json CallsOf(const Json& json) {
  const auto format = FormatOf(json.at("source").get<std::string>());
  if (!format) return {{"calls", nullptr}};
  Json calls = Json::array();
  for (const ToolCall& call :
       ParseToolCalls(*format, json.at("turn").get<std::string>(), json.at("tools")))
    calls.push_back(
        {{"name", call.name}, {"arguments", call.arguments}, {"problem", call.problem}});
  return {{"calls", std::move(calls)}};
}

int Run(const char* folder) {
  const auto tokenizer = ValueOrThrow(model::OpenTokenizer(folder));
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json json = ValueOrThrow(ParseJson(line, "case"));
    if (json.contains("turn")) {
      std::cout << CallsOf(json).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
      continue;
    }
    const auto text = TextOf(json, *tokenizer);
    const Json said = text.ok() ? Json{{"text", *text}} : Json{{"error", text.status().message()}};
    std::cout << said.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace keel::turns

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "turn_text_cases TOKENIZER_FOLDER\n";
    return 64;
  }
  return keel::turns::Run(argv[1]);
}
