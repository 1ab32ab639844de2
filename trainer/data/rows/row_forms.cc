#include "trainer/data/rows/row_forms.h"

#include <algorithm>

namespace keel::trainer {

namespace {

constexpr const char* kConversations = "conversations";

bool IsShareGpt(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& message) {
           const auto has = [&](const char* key) {
             const auto found = message.find(key);
             return found != message.end() && !found->is_null();
           };
           return message.is_object() && has("from") && has("value") && !has("role") &&
                  !has("content");
         });
}

// The calls that a turn of function_call holds as JSON, one or a list; null where it is something
// else.
Json CallsOf(const Json& value) {
  if (!value.is_string()) return nullptr;
  const Json said = Json::parse(value.get_ref<const std::string&>(), nullptr, false);
  Json calls = Json::array();
  for (const Json& call : said.is_array() ? said : Json::array({said})) {
    if (!call.is_object() || !call.contains("name")) return nullptr;
    calls.push_back({{"type", "function"}, {"function", call}});
  }
  return calls.empty() ? Json() : calls;
}

Json RoleOf(const Json& from) {
  if (from == "human") return "user";
  if (from == "gpt" || from == "function_call") return "assistant";
  return from == "observation" ? Json("tool") : from;
}

// What else a message holds stays, for its reader to refuse or count.
Json FromShareGpt(const Json& messages) {
  Json list = Json::array();
  for (const Json& message : messages) {
    Json turned = Json::object();
    const Json calls = message["from"] == "function_call" ? CallsOf(message["value"]) : Json();
    for (const auto& [key, value] : message.items()) {
      if ((key == "role" || key == "content") && value.is_null()) continue;
      if (key == "from") {
        turned["role"] = RoleOf(value);
      } else if (key == "value" && !calls.is_null()) {
        turned["tool_calls"] = calls;
      } else {
        turned[key == "value" ? "content" : key] = value;
      }
    }
    list.push_back(std::move(turned));
  }
  return list;
}

// As TRL extracts it: up to the first difference, and not a space before it, which the answers'
// first words bring. Where one text is the beginning of the other its last character is left to
// both, so that no answer is empty. Not within a character.
size_t CommonText(const std::string& a, const std::string& b) {
  const auto [end, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto count = static_cast<size_t>(end - a.begin());
  const bool begins = count == std::min(a.size(), b.size());
  const auto within = [](const std::string& text, size_t at) {
    return at < text.size() && (text[at] & '\xc0') == '\x80';
  };
  if (begins && count > 0) --count;
  while (count > 0 && (within(a, count) || within(b, count))) --count;
  if (!begins && count > 0 && a[count - 1] == ' ') --count;
  return count;
}

}  // namespace

bool AreMessages(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

const Json& StandardRow(const Json& row, const std::string& messages_key, Json* changed) {
  if (!row.is_object()) return row;
  const auto there = [&](const std::string& key) {
    const auto found = row.find(key);
    return found != row.end() && !found->is_null();
  };
  const bool rename = there(kConversations) && !there(messages_key);
  const bool turn = std::any_of(row.begin(), row.end(), [](const Json& value) {
    return value.is_null() || IsShareGpt(value);
  });
  if (!rename && !turn) return row;
  *changed = Json::object();
  for (const auto& [key, value] : row.items()) {
    if (value.is_null()) continue;
    const std::string& name = rename && key == kConversations ? messages_key : key;
    (*changed)[name] = IsShareGpt(value) ? FromShareGpt(value) : value;
  }
  return *changed;
}

const Json& WithPrompt(const Json& row, const std::string& prompt_key,
                       const std::string& chosen_key, const std::string& rejected_key,
                       Json* changed) {
  if (!row.is_object() || row.contains(prompt_key) || !row.contains(chosen_key) ||
      !row.contains(rejected_key))
    return row;
  const Json &chosen = row[chosen_key], &rejected = row[rejected_key];
  if (chosen == rejected) return row;  // nothing tells prompt and answer apart
  if (chosen.is_string() && rejected.is_string()) {
    const auto& a = chosen.get_ref<const std::string&>();
    const auto& b = rejected.get_ref<const std::string&>();
    const size_t common = CommonText(a, b);
    *changed = row;
    (*changed)[prompt_key] = a.substr(0, common);
    (*changed)[chosen_key] = a.substr(common);
    (*changed)[rejected_key] = b.substr(common);
    return *changed;
  }
  if (!AreMessages(chosen) || !AreMessages(rejected)) return row;
  auto [end, other] = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  if (end == chosen.end() || other == rejected.end()) {
    --end;
    --other;
  }
  if (end == chosen.begin()) return row;
  *changed = row;
  (*changed)[prompt_key] = Json(chosen.begin(), end);
  (*changed)[chosen_key] = Json(end, chosen.end());
  (*changed)[rejected_key] = Json(other, rejected.end());
  return *changed;
}

}  // namespace keel::trainer
