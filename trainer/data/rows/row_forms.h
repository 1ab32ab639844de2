// Rows as other trainers write them, as the rows that Keel's readers know.
#pragma once

#include <string>

#include "common/json.h"

namespace keel::trainer {

// Whether the value is a list of messages, as far as its first entry shows.
bool AreMessages(const Json& value);

// Returns `row`, or, where it is written otherwise, `changed`, which is made of it:
//
//   a member that is null        none: files often have every member in every row
//   conversations                what `messages_key` holds, unless that is there, too
//   {from, value} (ShareGPT)     {role, content}, in every list of messages; human is the user, gpt
//                                the assistant, function_call the assistant that calls the tools
//                                of its value (LLaMA-Factory), observation what a tool says
//
// A row that is no object comes back as it is.
const Json& StandardRow(const Json& row, const std::string& messages_key, Json* changed);

// For rows of preferences without a prompt (TRL's implicit ones): the messages, or the text, that
// both answers begin with is the prompt, and the answers are what follows; of two of which one is
// the beginning of the other the last message or character stays in both. Nothing is changed where
// there is a prompt, no two of one kind, or no message that both begin with.
const Json& WithPrompt(const Json& row, const std::string& prompt_key,
                       const std::string& chosen_key, const std::string& rejected_key,
                       Json* changed);

}  // namespace keel::trainer
