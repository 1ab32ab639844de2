#include "trainer/data/rows/chat_messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "common/text.h"
#include "trainer/data/rows/ready_ids.h"

namespace keel::trainer {

namespace {

// Of ChatML: a misspelt one would otherwise be learnt from, or not, without a word.
constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// And those that templates of models, and rows of other trainers, have beside them.
constexpr std::array<std::string_view, 7> kOtherRoles = {
    "function", "ipython", "observation", "environment", "document", "tool_call", "tool_response"};

bool IsText(const Json& value) { return value.is_string(); }

// A text, or parts of text: {"type": "text", "text": "..."}. No pictures and no sound.
Status CheckContent(const Json& content, const std::string& where) {
  if (content.is_string()) return Status::Ok();
  if (!content.is_array()) return Malformed(where, "content: expected a text, or a list of parts");
  const std::string in = where + ": content";
  for (const Json& part : content) {
    if (part.is_string()) continue;
    KEEL_ASSIGN_OR_RETURN(const std::string type, GetString(part, "type", in));
    if (type != "text") {
      return Malformed(where, fmt::format("content: a part of type {}, and this release reads text "
                                          "alone: give no such rows or messages",
                                          Printable(type, 60)));
    }
    KEEL_RETURN_IF_ERROR(GetString(part, "text", in).status());
  }
  return Status::Ok();
}

}  // namespace

bool IsKnownRole(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end() ||
         std::find(kOtherRoles.begin(), kOtherRoles.end(), role) != kOtherRoles.end();
}

Json WithoutNulls(const Json& value) {
  if (!value.is_structured()) return value;
  Json kept = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, item] : value.items()) {
    if (value.is_array()) {
      kept.push_back(WithoutNulls(item));
    } else if (!item.is_null()) {
      kept[key] = WithoutNulls(item);
    }
  }
  return kept;
}

Json WithoutNullMembers(const Json& messages) {
  Json kept = Json::array();
  for (const Json& message : messages) {
    Json& copy = kept.emplace_back(message);
    if (!copy.is_object()) continue;
    for (auto member = copy.begin(); member != copy.end();)
      member = member->is_null() ? copy.erase(member) : std::next(member);
  }
  return kept;
}

Result<Json> ReadColumn(const Json& row, const char* key, Json::value_t kind,
                        const RowContext& context) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null() || *found == "") return Json();
  Json value = *found;
  if (value.is_string()) {
    // What a text says is what somebody wrote, nulls and all.
    KEEL_ASSIGN_OR_RETURN(value, ParseJson(value.get<std::string>(), context.where + ": " + key));
  } else if (context.from_table) {
    value = WithoutNulls(value);
  }
  if (value.type() == kind || value.is_null()) return value;
  return Malformed(context.where, fmt::format("{}: expected {}, or one as JSON in a string", key,
                                              kind == Json::value_t::array ? "a list" : "a map"));
}

std::optional<Json> WithParsedArguments(const Json& messages, std::string_view text) {
  std::optional<Json> parsed;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto calls = messages[i].find("tool_calls");
    if (calls == messages[i].end() || !calls->is_array()) continue;
    for (size_t k = 0; k < calls->size(); ++k) {
      const Json& call = (*calls)[k];
      const bool wrapped = call.is_object() && call.contains("function");
      const Json& function = wrapped ? call["function"] : call;
      const auto found = function.find("arguments");
      if (found == function.end() || !found->is_string()) continue;
      const auto& said = found->get_ref<const std::string&>();
      if (text.find(Trim(said)) != std::string_view::npos) continue;
      Json object = Json::parse(said, nullptr, false);
      if (!object.is_object() || object.empty()) continue;
      if (!parsed) parsed = messages;
      Json& changed = (*parsed)[i]["tool_calls"][k];
      (wrapped ? changed["function"] : changed)["arguments"] = std::move(object);
    }
  }
  return parsed;
}

Status CheckMessage(const Json& message, const std::string& where) {
  KEEL_RETURN_IF_ERROR(GetString(message, "role", where).status());
  KEEL_RETURN_IF_ERROR(RowNotes::RefuseMedia(message, RowNotes::Form::kText, where));
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return Status::Ok();
  return CheckContent(*content, where);
}

Status CheckChatMlMessage(const Json& message, const RowContext& context, const std::string& key,
                          const std::string& where) {
  KEEL_ASSIGN_OR_RETURN(const std::string role, GetString(message, "role", where));
  KEEL_RETURN_IF_ERROR(context.notes.Look(message, {"role", "content"}, RowNotes::Form::kText,
                                          context.where, key + "[]."));
  // What a message says is all that is shown of it: it says something, and strings are no parts.
  const auto content = message.find("content");
  const bool parts = content != message.end() && content->is_array();
  if (!parts) KEEL_RETURN_IF_ERROR(GetString(message, "content", where).status());
  KEEL_RETURN_IF_ERROR(CheckContent(*content, where));
  if (parts && std::any_of(content->begin(), content->end(), IsText))
    return Malformed(where, "content: a part that is no {\"type\": \"text\", \"text\": ...}");
  if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) return Status::Ok();
  return Malformed(where, fmt::format("role: expected one of {}, found \"{}\"",
                                      fmt::join(kRoles, ", "), Printable(role, 60)));
}

}  // namespace keel::trainer
