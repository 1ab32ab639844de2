// Renders cases for the Python oracle, which has rendered the same ones by transformers.
//
// Reads lines of {"template", "source", "request": {messages, tools, ...}} and writes one line for
// each: {"text", "assistant"} or {"error"}. A template's source stands in its first case. With
// --repeat N, renders each N times and adds its "microseconds".
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "common/text.h"
#include "model/chat_template/chat_template.h"

namespace keel::model {
namespace {

Json Member(const Json& object, const char* key, Json otherwise) {
  const auto found = object.find(key);
  return found == object.end() ? std::move(otherwise) : *found;
}

ChatRequest RequestOf(const Json& json) {
  ChatRequest request;
  request.messages = json.at("messages");
  request.tools = Member(json, "tools", nullptr);
  request.documents = Member(json, "documents", nullptr);
  request.add_generation_prompt = Member(json, "add_generation_prompt", false).get<bool>();
  request.continue_final_message = Member(json, "continue_final_message", false).get<bool>();
  request.extra = Member(json, "extra", Json::object());
  request.clock = [] { return std::chrono::system_clock::from_time_t(1750000000); };
  return request;
}

Json Rendered(const ChatTemplate& chat_template, const ChatRequest& request, int repeat) {
  Json line = Json::object();
  const auto begin = std::chrono::steady_clock::now();
  auto rendered = chat_template.Render(request);
  for (int i = 1; i < repeat; ++i) rendered = chat_template.Render(request);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  if (repeat > 1) line["microseconds"] = spent.count() / repeat;
  if (!rendered.ok()) {
    line["error"] = rendered.status().message();
    return line;
  }
  line["text"] = rendered->text;
  line["assistant"] = Json::array();
  for (const ByteRange& range : rendered->assistant) {
    line["assistant"].push_back({range.begin, range.end});
  }
  return line;
}

int Run(int repeat) {
  std::map<std::string, Result<ChatTemplate>> templates;
  std::string text;
  while (std::getline(std::cin, text)) {
    const Json json = ValueOrThrow(ParseJson(text, "case"));
    const auto name = json.at("template").get<std::string>();
    if (json.contains("source")) {
      templates.insert_or_assign(name,
                                 ChatTemplate::Parse(json.at("source").get<std::string>(), name));
    }
    const Result<ChatTemplate>& parsed = templates.at(name);
    Json line = Json::object();
    if (parsed.ok()) {
      line = Rendered(*parsed, RequestOf(json.at("request")), repeat);
    } else {
      line["error"] = parsed.status().message();
    }
    std::cout << line.dump() << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace keel::model

int main(int argc, char** argv) {
  const bool timed = argc == 3 && std::string(argv[1]) == "--repeat";
  return keel::model::Run(timed ? std::atoi(argv[2]) : 1);
}
