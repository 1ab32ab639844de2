// ChatRules: how a run's conversations become text, and what of it is learnt.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/json.h"
#include "common/status.h"
#include "model/chat_template/chat_template.h"
#include "trainer/data/rows/choices.h"

namespace keel::trainer {

struct ChatRules {
  model::ChatTemplate chat;  // with the tokenizer's special tokens
  // Of a model with several: the one named "tool_use", for conversations with tools.
  std::optional<model::ChatTemplate> with_tools = {};
  std::string no_tools = {};        // why that one cannot be used, where there is one; or ""
  Json arguments = Json::object();  // data.apply_chat_template_kwargs; a row's own go before them
  Json tools = {};  // schemas that rows without tools of their own have: a list, or null
  TrainOn train_on = TrainOn::kAllAssistant;
  bool chatml = false;  // the one of this file, which shows role and content alone
  // Whether a template that asks for the date is told today's, as transformers does, and not the
  // same at every start, without which no run could be resumed.
  bool todays_date = false;
};

// "<|im_start|>role\ncontent<|im_end|>\n", of which the assistant's content and end mark are
// learnt. A content of parts is their texts, one behind the other.
const model::ChatTemplate& ChatMl();

// The rules of ChatML, as of a model that Keel trained on bytes.
std::shared_ptr<const ChatRules> ChatMlRules();

// What the template is told where it asks for the date; empty: the system's clock.
std::function<std::chrono::system_clock::time_point()> ClockOf(const ChatRules& rules);

// By which renderings of other rules are told from those of these.
std::string FingerprintOf(const ChatRules& rules);

}  // namespace keel::trainer
