#include "trainer/data/rows/chat_rules.h"

#include <set>
#include <span>
#include <string>

#include "common/hash.h"

namespace keel::trainer {

namespace {

// The texts of parts follow each other with nothing between, as in most templates that read lists.
constexpr const char* kChatMl =
    "{% macro said(content) %}"
    "{% if content is string %}{{ content }}"
    "{% else %}{% for part in content %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% endmacro %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ said(message['content']) + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ said(message['content']) + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// 26 July 2024, which Llama's templates say where there is no clock.
constexpr std::chrono::system_clock::time_point kTrainingDay{std::chrono::seconds(1'721'952'000)};

// The tokens that every tokenizer has a name for, and of others those that the template reads.
Json TokensRead(const model::ChatTemplate& chat) {
  static const std::set<std::string> common = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
  Json tokens = Json::object();
  for (const auto& [name, text] : chat.special_tokens().items()) {
    if (common.contains(name) || chat.source().find(name) != std::string::npos) tokens[name] = text;
  }
  return tokens;
}

}  // namespace

const model::ChatTemplate& ChatMl() {
  static const model::ChatTemplate chat =
      ValueOrThrow(model::ChatTemplate::Parse(kChatMl, "Keel's ChatML"));
  return chat;
}

std::shared_ptr<const ChatRules> ChatMlRules() {
  static const auto rules =
      std::make_shared<const ChatRules>(ChatRules{.chat = ChatMl(), .chatml = true});
  return rules;
}

std::function<std::chrono::system_clock::time_point()> ClockOf(const ChatRules& rules) {
  if (rules.todays_date) return {};
  return [] { return kTrainingDay; };
}

std::string FingerprintOf(const ChatRules& rules) {
  const bool plain = rules.train_on == TrainOn::kAllAssistant;
  if (rules.chatml && plain) return "chatml";
  Json parts = {rules.chat.source(), TokensRead(rules.chat), rules.arguments,
                NameOf(rules.train_on)};
  if (!rules.tools.is_null()) parts.push_back(rules.tools);
  if (rules.with_tools) parts.push_back({{"with_tools", rules.with_tools->source()}});
  const std::string all = parts.dump(-1, ' ', false, Json::error_handler_t::replace);
  return "template " + Hash128(std::as_bytes(std::span(all))).ToHex();
}

}  // namespace keel::trainer
