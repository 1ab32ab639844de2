// What messages of rows may hold, before a template sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/row_text.h"

namespace keel::trainer {

// Whether a conversation has messages of that role, by whose name nobody means the model's own.
bool IsKnownRole(std::string_view role);

// Of a table, whose structs have every field.
Json WithoutNulls(const Json& value);
// Without the members of messages that are null, as transformers' tokenizers hand messages to a
// template: {"content": null} would stand as "None" in the text of most.
Json WithoutNullMembers(const Json& messages);

// Calls of tools whose arguments are an object as JSON in a string, of which `text` does not have
// that as it stands: the messages with objects in their place. Nothing where there is none.
std::optional<Json> WithParsedArguments(const Json& messages, std::string_view text);

// A column of a row that may be JSON in a string; null where it is absent.
Result<Json> ReadColumn(const Json& row, const char* key, Json::value_t kind,
                        const RowContext& context);

// A template reads whatever else a message holds.
Status CheckMessage(const Json& message, const std::string& where);
// ChatML reads nothing else.
Status CheckChatMlMessage(const Json& message, const RowContext& context, const std::string& key,
                          const std::string& where);

}  // namespace keel::trainer
