#include "trainer/foreign/given_values.h"

#include <fmt/format.h>

#include "common/options/option_value.h"
#include "common/options/yaml_text.h"
#include "common/text.h"

namespace keel::trainer::foreign {

namespace {

constexpr int kDeepest = 16;

// FreeValue, and the words that Python's readers know.
Json ValueOf(const options::YamlNode& node, bool yaml_words) {
  using Kind = options::YamlNode::Kind;
  if (node.kind == Kind::kSequence) {
    Json list = Json::array();
    for (const options::YamlNode& item : node.items) list.push_back(ValueOf(item, yaml_words));
    return list;
  }
  if (node.kind == Kind::kMap) {
    Json map = Json::object();
    for (const auto& [key, value] : node.entries) map[key] = ValueOf(value, yaml_words);
    return map;
  }
  if (node.kind == Kind::kScalar && !node.quoted) {
    if (node.text == "None") return nullptr;
    std::string lower;
    for (const char c : node.text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    if (lower == "true" || (yaml_words && (lower == "yes" || lower == "on"))) return true;
    if (lower == "false" || (yaml_words && (lower == "no" || lower == "off"))) return false;
  }
  return options::FreeValue(node);
}

std::string TextOf(const Json& value) {
  if (value.is_null()) return "null";
  return value.is_string() ? value.get<std::string>() : options::YamlFlow(value);
}

// Where the bracket that opens at `open`, "${", is closed; npos where it is not.
size_t Closing(const std::string& text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string::npos;
}

Status NotKnown(const std::string& what, const std::string& why) {
  return Status(StatusCode::kConfig, fmt::format("{}, {}", Printable(what, 80), why));
}

}  // namespace

Result<Json> ValueOfText(const std::string& text, bool yaml_words) {
  std::vector<options::Problem> problems;
  const options::YamlNode node = options::ParseYaml({"value", text}, problems);
  if (!problems.empty()) return Status(StatusCode::kConfig, problems.front().text);
  return ValueOf(node, yaml_words);
}

std::string Shown(const Json& value) { return Printable(options::YamlFlow(value), 80); }

GivenValues::GivenValues(const KeyTable& table, Environment environment)
    : table_(table), environment_(std::move(environment)) {}

Status GivenValues::AddFile(const options::Source& source) {
  std::vector<options::Problem> problems;
  const options::YamlNode root = options::ParseYaml(source, problems);
  if (!problems.empty())
    return Status(StatusCode::kConfig, options::Render(source, problems.front()));
  if (root.kind != options::YamlNode::Kind::kMap) {
    return Status(StatusCode::kConfig, fmt::format("{}: expected a map of keys, got {}",
                                                   source.name, options::Shown(root)));
  }
  const std::function<void(const options::YamlNode&, const std::string&)> add =
      [&](const options::YamlNode& node, const std::string& path) {
        for (const auto& [name, value] : node.entries) {
          const std::string key = path.empty() ? name : path + "." + name;
          const bool section = value.kind == options::YamlNode::Kind::kMap &&
                               !value.entries.empty() && !table_.IsKey(key);
          if (section) {
            add(value, key);
          } else {
            Add({key, ValueOf(value, true), {}});
          }
        }
      };
  add(root, "");
  return Status::Ok();
}

void GivenValues::Add(Given given) {
  const auto [place, added] = at_.emplace(given.key, all_.size());
  if (added) {
    all_.push_back(std::move(given));
  } else {
    all_[place->second] = std::move(given);
  }
}

void GivenValues::AddLeaves(Given given) {
  if (!given.value.is_object() || given.value.empty() || table_.IsKey(given.key))
    return Add(std::move(given));
  for (const auto& [name, value] : given.value.items())
    AddLeaves({given.key + "." + name, value, given.not_known});
}

void GivenValues::Remove(const std::string& key) {
  std::vector<Given> kept;
  for (Given& given : all_) {
    if (given.key != key && !given.key.starts_with(key + ".")) kept.push_back(std::move(given));
  }
  all_ = std::move(kept);
  at_.clear();
  for (size_t i = 0; i < all_.size(); ++i) at_[all_[i].key] = i;
}

Result<std::optional<Json>> GivenValues::Value(const std::string& key) const {
  return ValueAt(key, 0);
}
Result<Json> GivenValues::Resolve(const std::string& key, const Json& value) const {
  return ResolveAt(key, value, 0);
}

Result<std::optional<Json>> GivenValues::ValueAt(const std::string& key, int depth) const {
  if (const auto found = at_.find(key); found != at_.end()) {
    const Given& given = all_[found->second];
    if (!given.not_known.empty()) return Status(StatusCode::kConfig, given.not_known.front());
    if (given.value != Json("???")) {
      KEEL_ASSIGN_OR_RETURN(Json value, ResolveAt(key, given.value, depth));
      return std::optional<Json>(std::move(value));
    }
  }
  const auto row = table_.keys().find(key);
  if (row == table_.keys().end() || row->second->preset.empty()) return std::optional<Json>();
  const std::string_view preset = row->second->preset;
  KEEL_ASSIGN_OR_RETURN(const Json written,
                        ValueOfText(std::string(preset.substr(0, preset.find('|'))), true));
  KEEL_ASSIGN_OR_RETURN(Json value, ResolveAt(key, written, depth));
  return std::optional<Json>(std::move(value));
}

Result<Json> GivenValues::ResolveAt(const std::string& key, const Json& value, int depth) const {
  if (depth > kDeepest) return NotKnown(key, "whose interpolations lead back to themselves");
  if (value.is_array() || value.is_object()) {
    Json resolved = value.is_array() ? Json::array() : Json::object();
    for (const auto& [name, item] : value.items()) {
      KEEL_ASSIGN_OR_RETURN(Json part, ResolveAt(key, item, depth));
      if (value.is_array()) {
        resolved.push_back(std::move(part));
      } else {
        resolved[name] = std::move(part);
      }
    }
    return resolved;
  }
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  std::string resolved;
  size_t at = 0;
  while (true) {
    const size_t open = text.find("${", at);
    if (open == std::string::npos) break;
    const size_t close = Closing(text, open);
    if (close == std::string::npos) return NotKnown(text, "whose brackets do not close");
    KEEL_ASSIGN_OR_RETURN(const Json part,
                          Interpolate(key, text.substr(open + 2, close - open - 2), depth + 1));
    if (open == 0 && close + 1 == text.size()) return part;
    resolved += text.substr(at, open - at) + TextOf(part);
    at = close + 1;
  }
  return at == 0 ? value : Json(resolved + text.substr(at));
}

// OmegaConf's: "a.b" and ".b" are other keys, "oc.select:a.b,default" one that may be missing,
// "oc.env:NAME,default" a variable of the environment.
Result<Json> GivenValues::Interpolate(const std::string& key, const std::string& inside,
                                      int depth) const {
  const std::string whole = "${" + inside + "}";
  const size_t colon = inside.find(':');
  const std::string resolver = colon == std::string::npos ? "" : inside.substr(0, colon);
  std::string name = inside;
  std::optional<Json> otherwise;
  if (!resolver.empty()) {
    if (resolver != "oc.select" && resolver != "oc.env")
      return NotKnown(whole, "which only OmegaConf could work out");
    name = inside.substr(colon + 1);
    if (const size_t comma = name.find(','); comma != std::string::npos) {
      KEEL_ASSIGN_OR_RETURN(const Json written,
                            ValueOfText(std::string(Trim(name.substr(comma + 1))), false));
      KEEL_ASSIGN_OR_RETURN(otherwise, ResolveAt(key, written, depth));
      name.resize(comma);
    }
  }
  name = std::string(Trim(name));
  if (resolver == "oc.env") {
    if (const auto value = environment_(name)) {
      from_environment_.insert(name);
      return Json(*value);
    }
    if (otherwise) return *otherwise;
    return NotKnown(whole, "a variable that the environment lacks");
  }
  // Dots before the name count up from the section of the key.
  if (name.starts_with('.')) {
    std::string section = key;
    while (name.starts_with('.')) {
      const size_t dot = section.rfind('.');
      section = dot == std::string::npos ? "" : section.substr(0, dot);
      name.erase(0, 1);
    }
    if (!section.empty()) name = section + "." + name;
  }
  KEEL_ASSIGN_OR_RETURN(std::optional<Json> value, ValueAt(name, depth));
  if (!value) {
    // A section, as a map of what was given in it.
    Json map = Json::object();
    for (const Given& given : all_) {
      if (!given.key.starts_with(name + ".")) continue;
      KEEL_ASSIGN_OR_RETURN(map[given.key.substr(name.size() + 1)],
                            ResolveAt(given.key, given.value, depth));
    }
    if (!map.empty()) value = std::move(map);
  }
  if (value) return *value;
  if (otherwise) return *otherwise;
  if (resolver == "oc.select") return Json(nullptr);
  return NotKnown(whole, "a key that the file does not have");
}

}  // namespace keel::trainer::foreign
