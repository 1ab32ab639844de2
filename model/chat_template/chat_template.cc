#include "model/chat_template/chat_template.h"

#include <array>
#include <utility>

#include "common/text.h"
#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/parser.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model {
namespace {

// Stands at the end of the message that is to go on, to find it again in the text.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

bool HasReasoning(const Json& messages) {
  for (const Json& message : messages) {
    for (const char* field : kReasoningFields) {
      if (message.contains(field)) return true;
    }
  }
  return false;
}

// The messages with reasoning under the names that templates read, as transformers has it since 5.
Json WithReasoningNames(const Json& messages) {
  Json named = Json::array();
  for (const Json& message : messages) {
    const Json* reasoning = nullptr;
    for (const char* field : kReasoningFields) {
      const auto found = message.find(field);
      if (reasoning == nullptr && found != message.end() && !found->is_null()) reasoning = &*found;
    }
    if (reasoning == nullptr) {
      named.push_back(message);
      continue;
    }
    Json copy = Json::object();
    copy["thinking"] = *reasoning;
    for (const auto& [key, value] : message.items()) copy[key] = value;
    copy["reasoning_content"] = *reasoning;
    named.push_back(std::move(copy));
  }
  return named;
}

// Tags the last message; gives its content as it was.
std::string TagLastMessage(const std::string& source, Json* messages) {
  if (messages->empty()) jinja::Fail("there is no last message to continue");
  Json& last = messages->back();
  const auto content = last.find("content");
  if (content == last.end() || content->is_null()) {
    jinja::Fail("the last message has no \"content\" to continue");
  }
  if (source.find("content") == std::string::npos) {
    jinja::Fail("the template does not read the \"content\" that is to be continued");
  }
  const auto tag = [](Json* text) {
    std::string before = text->get<std::string>();
    *text = before + std::string(kContinueTag);
    return before;
  };
  if (content->is_string()) return tag(&*content);
  if (!content->is_array()) jinja::Fail("the last message's \"content\" is no text to continue");
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    if (!part->is_object() || !part->contains("text")) continue;
    if (!(*part)["text"].is_string()) break;
    return tag(&(*part)["text"]);
  }
  jinja::Fail("the last message has no text to continue");
}

// Cuts the text where the last message's content ends.
void CutAtTag(const std::string& content, std::string* text) {
  const std::string_view mark = jinja::StripText(kContinueTag, jinja::StripSide::kBoth);
  const size_t at = text->rfind(mark);
  if (at == std::string::npos ||
      text->find(jinja::StripText(content, jinja::StripSide::kBoth)) == std::string::npos) {
    jinja::Fail(
        "the last message, which is to be continued, is not in the text that the template "
        "makes");
  }
  const bool exact = text->compare(at, kContinueTag.size(), kContinueTag) == 0;
  text->resize(at);
  // The template has trimmed the message: the end of its content is trimmed as well.
  if (!exact) {
    text->resize(jinja::StripText(*text, jinja::StripSide::kRight).size());
  }
}

Status CheckRequest(const ChatRequest& request, const std::string& where) {
  const auto refuse = [&](const std::string& message) {
    return Status(StatusCode::kInvalidData, where + ": " + message);
  };
  if (!request.messages.is_array()) return refuse("the messages are not a list");
  for (const Json& message : request.messages) {
    if (!message.is_object()) return refuse("a message is not an object");
  }
  for (const auto& [name, list] :
       {std::pair{"tools", &request.tools}, std::pair{"documents", &request.documents}}) {
    if (list->is_null()) continue;
    if (!list->is_array()) return refuse(std::string(name) + " is not a list");
    for (const Json& item : *list) {
      if (!item.is_object()) return refuse(std::string(name) + " has an item that is no object");
    }
  }
  if (!request.extra.is_object()) return refuse("the extra arguments are not an object");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    if (request.extra.contains(name)) {
      return refuse(std::string("'") + name + "' cannot be an extra argument");
    }
  }
  if (request.add_generation_prompt && request.continue_final_message) {
    return refuse("a generation prompt and a last message that goes on exclude one another");
  }
  return Status::Ok();
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string source;
  std::string where;
  jinja::Program program;

  Status Refused(const jinja::Failure& failure, int line) const {
    const int at = failure.line > 0 ? failure.line : line;
    return Status(StatusCode::kInvalidData, where + (at > 0 ? ":" + std::to_string(at) : "") +
                                                ": " + PrintableLines(failure.message));
  }
};

Result<ChatTemplate> ChatTemplate::Parse(std::string source, std::string where) {
  auto parsed = std::make_shared<Parsed>();
  parsed->source = std::move(source);
  parsed->where = std::move(where);
  if (parsed->source.size() > jinja::kMaxSourceBytes) {
    return Status(StatusCode::kInvalidData,
                  parsed->where + ": a chat template of " + std::to_string(parsed->source.size()) +
                      " bytes; at most " + std::to_string(jinja::kMaxSourceBytes) + " are read");
  }
  if (const size_t bad = FindNotUtf8(parsed->source); bad != std::string::npos) {
    return Status(StatusCode::kInvalidData,
                  parsed->where + ": byte " + std::to_string(bad) + " is not UTF-8");
  }
  try {
    parsed->program = jinja::ResolveNames(jinja::ParseTemplate(parsed->source));
  } catch (const jinja::Failure& failure) {
    return parsed->Refused(failure, 0);
  }
  return ChatTemplate(std::move(parsed));
}

Result<RenderedChat> ChatTemplate::Render(const ChatRequest& request) const {
  KEEL_RETURN_IF_ERROR(CheckRequest(request, parsed_->where));
  jinja::Machine machine;
  machine.clock = request.clock ? request.clock : [] { return std::chrono::system_clock::now(); };
  try {
    std::string continued;
    Json changed;
    const bool changes = request.continue_final_message || HasReasoning(request.messages);
    if (changes) changed = WithReasoningNames(request.messages);
    if (request.continue_final_message) continued = TagLastMessage(parsed_->source, &changed);
    jinja::Dict variables;
    const auto set = [&](const std::string& name, const Json& value) {
      variables.Set(jinja::Value::String(name), jinja::FromJson(value));
    };
    for (const Json* tokens : {&special_tokens_, &request.special_tokens, &request.extra}) {
      for (const auto& [name, value] : tokens->items()) set(name, value);
    }
    set("messages", changes ? changed : request.messages);
    set("tools", request.tools);
    set("documents", request.documents);
    set("add_generation_prompt", request.add_generation_prompt);
    RenderedChat rendered;
    rendered.has_generation_blocks = parsed_->program.has_generation;
    rendered.text =
        jinja::Evaluator(parsed_->program, variables, &machine).Run(&rendered.assistant);
    if (request.continue_final_message) {
      CutAtTag(continued, &rendered.text);
    }
    // What a block has made may be in a variable, and not in the text.
    const auto end = static_cast<int64_t>(rendered.text.size());
    for (ByteRange& range : rendered.assistant) {
      range = {std::min(range.begin, end), std::min(range.end, end)};
    }
    return rendered;
  } catch (const jinja::Failure& failure) {
    return parsed_->Refused(failure, machine.line);
  }
}

ChatTemplate ChatTemplate::WithSpecialTokens(Json special_tokens) const {
  ChatTemplate copy = *this;
  copy.special_tokens_ = std::move(special_tokens);
  return copy;
}

const std::string& ChatTemplate::source() const { return parsed_->source; }
bool ChatTemplate::has_generation_blocks() const { return parsed_->program.has_generation; }

}  // namespace keel::model
