// A model's chat template: turns messages into the text that the model was trained on.
//
// The template is Jinja, as transformers' apply_chat_template sets it up, run by an interpreter of
// our own for the part of the language that chat templates use; what is not in it is refused by
// name when the template is parsed or run. A template is foreign text: steps, depth and output have
// limits (limits.h), and nothing that it does reaches a file or changes what it is given.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/byte_range.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::model {

struct ChatRequest {
  Json messages = Json::array();  // objects with "role", "content" ...
  Json tools;                     // an array of schemas, or null
  Json documents;                 // an array of objects, or null
  bool add_generation_prompt = false;
  // The text ends where the last message's content ends, for the model to go on with it.
  bool continue_final_message = false;
  // More that the template may read: {"enable_thinking": false}. Not one of the names above.
  Json extra = Json::object();
  // bos_token, eos_token ... as strings; they come before the template's own.
  Json special_tokens = Json::object();
  // What strftime_now reads; the system's clock where it is empty.
  std::function<std::chrono::system_clock::time_point()> clock;
};

// Under which names a message's reasoning may come; templates are shown it under the first, which
// most read, and the second, GPT-OSS's.
inline constexpr std::array<const char*, 3> kReasoningFields = {"reasoning_content", "thinking",
                                                                "reasoning"};

struct RenderedChat {
  std::string text;
  // What lies within {% generation %}: what the assistant said. In order of their ends.
  std::vector<ByteRange> assistant;
  bool has_generation_blocks = false;  // whether the template has any
};

// Immutable and thread-safe; copies share the parsed template.
class ChatTemplate {
 public:
  // `where` names the template in messages. kInvalidData with the line for what is no template.
  static Result<ChatTemplate> Parse(std::string source, std::string where);

  // kInvalidData with the line where the template refuses the messages, by raise_exception or
  // otherwise.
  Result<RenderedChat> Render(const ChatRequest& request) const;

  // The same template with tokens of a tokenizer; an object of strings.
  ChatTemplate WithSpecialTokens(Json special_tokens) const;

  const std::string& source() const;
  const Json& special_tokens() const { return special_tokens_; }
  bool has_generation_blocks() const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
  Json special_tokens_ = Json::object();
};

// The template of a Hugging Face directory, with its tokenizer's special tokens: from
// chat_template.jinja and additional_chat_templates/*.jinja, else from `chat_template` in
// tokenizer_config.json, one or several by name. `name` "" is the one named "default", or the only
// one. Nothing where the directory has no template; kNotFound where none has the name.
Result<std::optional<ChatTemplate>> LoadChatTemplate(const std::string& directory,
                                                     std::string_view name = "");

// The tokens of such a directory that a template may read, from tokenizer_config.json and
// special_tokens_map.json: {"bos_token": "<s>", ...}.
Result<Json> LoadSpecialTokens(const std::string& directory);

}  // namespace keel::model
