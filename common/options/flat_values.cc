#include "common/options/flat_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/json.h"

namespace keel::options {

namespace {

// As it was written where it could otherwise be taken for something else: for nothing, or inside a
// list or map for several values.
std::string ScalarText(const YamlNode& node, bool inside) {
  const bool ambiguous = node.text.empty() || node.text == "null" ||
                         (inside && node.text.find_first_of(",:[]{}\"\n") != std::string::npos);
  if (!node.quoted || !ambiguous) return node.text;
  return Json(node.text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Text(const YamlNode& node, bool inside = false) {
  std::vector<std::string> parts;
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return ScalarText(node, inside);
    case YamlNode::Kind::kSequence:
      for (const YamlNode& item : node.items) parts.push_back(Text(item, true));
      return fmt::format("[{}]", fmt::join(parts, ", "));
    case YamlNode::Kind::kMap:
      for (const auto& [key, value] : node.entries) parts.push_back(key + ": " + Text(value, true));
      return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  return {};
}

void Collect(const YamlNode& node, const std::string& path, FlatValues& values) {
  if (node.kind != YamlNode::Kind::kMap || node.entries.empty()) {
    if (!path.empty()) values[path] = Text(node);
    return;
  }
  for (const auto& [key, value] : node.entries)
    Collect(value, path.empty() ? key : path + "." + key, values);
}

std::optional<double> Number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool Same(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto x = Number(a), y = Number(b);
  return x && y && *x == *y;
}

}  // namespace

Result<FlatValues> Flatten(const Source& source) {
  std::vector<Problem> problems;
  const YamlNode root = ParseYaml(source, problems);
  if (!problems.empty()) return Status(StatusCode::kConfig, Render(source, problems.front()));
  FlatValues values;
  Collect(root, "", values);
  return values;
}

std::vector<ValueChange> Changes(const FlatValues& before, const FlatValues& after) {
  std::vector<ValueChange> changes;
  for (const auto& [path, value] : before) {
    const auto found = after.find(path);
    if (found == after.end()) {
      changes.push_back({path, value, std::nullopt});
    } else if (!Same(value, found->second)) {
      changes.push_back({path, value, found->second});
    }
  }
  for (const auto& [path, value] : after) {
    if (!before.contains(path)) changes.push_back({path, std::nullopt, value});
  }
  std::sort(changes.begin(), changes.end(),
            [](const ValueChange& a, const ValueChange& b) { return a.path < b.path; });
  return changes;
}

}  // namespace keel::options
