// By which chat template a model's messages are written: the one that the run names, its
// directory's, or ChatML.
#pragma once

#include <memory>
#include <string>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/data/rows/choices.h"

namespace keel::trainer {

// What the run asks for.
struct ChatChoice {
  // "chatml", the name of one of the directory's, Jinja, or a file of it, in the place of the
  // directory's default; or "".
  std::string source;
  Json arguments = Json::object();  // ChatRules::arguments
  TrainOn train_on = TrainOn::kAllAssistant;
  bool todays_date = false;  // ChatRules::todays_date
};

struct ChatFit {
  std::shared_ptr<const ChatRules> rules;
  std::string missing;    // without rules, why: "DIR has no chat template ..."
  bool unusable = false;  // it has one, which cannot be read
  std::string warning;    // or ""
};

// `folder` has the tokenizer's files; "" for none. Without a choice the folder's default template
// is taken, with its "tool_use" for conversations with tools, as transformers does; without one,
// ChatML where `chatml` says so. A template of the folder that cannot be read is unusable; one that
// was asked for and cannot be is kConfig.
Result<ChatFit> FitChat(const ChatChoice& choice, const std::string& folder, bool chatml);

}  // namespace keel::trainer
