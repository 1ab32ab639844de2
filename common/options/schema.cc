#include "common/options/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/options/option_value.h"
#include "common/options/yaml_text.h"
#include "common/text.h"

namespace keel::options {

namespace {

// A field bound by reference; T is what Json holds for it.
template <typename T>
void Bind(Option& option, T& field) {
  option.get = [&field] { return Json(field); };
  option.set = [&field](const Json& value) { field = value.get<T>(); };
}
template <typename T>
void Bind(Option& option, std::optional<T>& field) {
  option.nullable = true;
  option.get = [&field] { return field ? Json(*field) : Json(nullptr); };
  option.set = [&field](const Json& value) {
    if (value.is_null()) {
      field.reset();
    } else {
      field = value.get<T>();
    }
  };
}

template <typename T>
Option MakeOption(std::string path, Kind kind, T& field, std::string doc) {
  Option option;
  option.path = std::move(path);
  option.kind = kind;
  option.doc = std::move(doc);
  Bind(option, field);
  option.initial = option.get();
  return option;
}

std::string Meaning(const Option& option) {
  return option.doc + (option.per_node ? " May differ from node to node." : "");
}

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t dot = path.find('.', begin);
    parts.emplace_back(path.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    if (dot == std::string_view::npos) return parts;
    begin = dot + 1;
  }
}

// Of a table of `options`, the start of the paths among which a key may be suggested for `path`:
// two sections deep where there are such, one where that is made of sections (a quarter of its keys
// is in some, as of a role; of `trainer` few are), else "".
std::string RoleStart(const std::vector<Option>& options, std::string_view path) {
  const size_t first = path.find('.');
  if (first == std::string_view::npos) return "";
  const std::string root(path.substr(0, first + 1));
  const size_t second = path.find('.', first + 1);
  const std::string deep(second == std::string_view::npos ? "" : path.substr(0, second + 1));
  int all = 0, deeper = 0;  // keys of the root, and those in its sections
  for (const Option& option : options) {
    if (option.path.compare(0, root.size(), root) != 0) continue;
    if (!deep.empty() && option.path.compare(0, deep.size(), deep) == 0) return deep;
    ++all;
    deeper += option.path.find('.', root.size()) != std::string::npos ? 1 : 0;
  }
  return deeper > 0 && 4 * deeper >= all ? root : "";
}

// The range of an option in what a JSON schema says of a number.
void AddRange(const Option& option, Json& number) {
  if (option.min) number[option.exclusive_min ? "exclusiveMinimum" : "minimum"] = *option.min;
  number["maximum"] = LargestOf(option);
}

// An option in a JSON schema, which takes what Convert takes but for infinity, which JSON has not.
Json EntryOf(const Option& option) {
  Json entry = Json::object();
  const char* types[] = {"boolean", "integer", "number", "string", "array",
                         "array",   "array",   "object", "array"};
  const char* type = types[static_cast<size_t>(option.kind)];
  if (option.nullable || option.kind == Kind::kMap) {
    entry["type"] = Json::array({type, "null"});
  } else {
    entry["type"] = type;
  }
  entry["description"] =
      Meaning(option) + (option.unit.empty() ? "" : " Unit: " + option.unit + ".");
  entry["default"] = option.initial;
  if (option.kind == Kind::kInt || option.kind == Kind::kDouble) AddRange(option, entry);
  if (option.kind == Kind::kString && !option.choices.empty()) {
    entry["enum"] = option.choices;
    if (option.nullable) entry["enum"].push_back(nullptr);
  }
  if (option.kind == Kind::kStringList) {
    entry["items"] = {{"type", "string"}};
    if (!option.choices.empty()) entry["items"]["enum"] = option.choices;
  }
  if (option.or_one) {
    entry["anyOf"] = {entry["items"], {{"type", "array"}, {"items", entry["items"]}}};
    entry.erase("type");
    entry.erase("items");
  }
  if (option.kind == Kind::kIntList || option.kind == Kind::kDoubleList) {
    entry["items"] = {{"type", option.kind == Kind::kIntList ? "integer" : "number"}};
    AddRange(option, entry["items"]);
  }
  if (option.kind == Kind::kMapList) entry["items"] = {{"type", "object"}};
  return entry;
}

// Of so many problems a file is another program's, or of another release: to list them all helps
// nobody.
constexpr size_t kMostProblems = 20;
constexpr size_t kShownOfMany = 4;
constexpr size_t kMostSections = 8;

// The first few, and how the others are spread over the sections of the file.
std::string Summary(const std::vector<std::string>& errors, const std::vector<Problem>& problems) {
  std::string text;
  for (size_t i = 0; i < kShownOfMany; ++i) text += errors[i] + "\n";
  std::map<std::string, size_t> by_section;
  for (size_t i = kShownOfMany; i < problems.size(); ++i) {
    const std::string& said = problems[i].text;
    const std::vector<std::string> parts = SplitPath(said.substr(0, said.find(": ")));
    by_section[parts.size() > 2 ? parts[0] + "." + parts[1] : parts[0]] += 1;
  }
  std::vector<std::pair<size_t, std::string>> counts;
  for (const auto& [section, count] : by_section) counts.emplace_back(count, section);
  std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  text += fmt::format("and {} more problems", errors.size() - kShownOfMany);
  for (size_t i = 0; i < std::min(counts.size(), kMostSections); ++i)
    text += fmt::format("{} {} of {}", i == 0 ? ":" : ",", counts[i].first,
                        Printable(counts[i].second));
  return text + (counts.size() > kMostSections ? ", ..." : "");
}

}  // namespace

Option& Schema::Append(Option option) {
  options_.push_back(std::move(option));
  return options_.back();
}

Option& Schema::Add(std::string path, bool& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kBool, field, std::move(doc)));
}
Option& Schema::Add(std::string path, int64_t& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kInt, field, std::move(doc)));
}
Option& Schema::Add(std::string path, double& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kDouble, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::string& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kString, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::optional<bool>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kBool, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::optional<int64_t>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kInt, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::optional<double>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kDouble, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::optional<std::string>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kString, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::vector<std::string>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kStringList, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::vector<int64_t>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kIntList, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::vector<double>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kDoubleList, field, std::move(doc)));
}
Option& Schema::Add(std::string path, Json& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kMap, field, std::move(doc)));
}
Option& Schema::Add(std::string path, std::vector<Json>& field, std::string doc) {
  return Append(MakeOption(std::move(path), Kind::kMapList, field, std::move(doc)));
}

Option& Schema::AddChoice(std::string path, Kind kind, std::vector<std::string> choices,
                          std::string doc, Access field) {
  Option option;
  option.path = std::move(path);
  option.kind = kind;
  option.choices = std::move(choices);
  option.doc = std::move(doc);
  option.initial = field.get();
  option.get = std::move(field.get);
  option.set = std::move(field.set);
  return Append(std::move(option));
}

Option* Schema::Find(std::string_view path) {
  for (Option& option : options_) {
    if (option.path == path) return &option;
  }
  return nullptr;
}

std::string Schema::Origin(std::string_view path) const {
  for (const Option& option : options_) {
    if (option.path == path) return option.origin;
  }
  return "unknown";
}

// The nearest sibling, then a key of the same last name. A key of one role, such as
// actor_rollout_ref.rollout, is never suggested for another's; outside of roles, in a section
// without sections of its own or in none of the table's, any key may be meant.
std::string Schema::Suggest(std::string_view path) const {
  const auto dot = path.rfind('.');
  const std::string parent(dot == std::string_view::npos ? "" : path.substr(0, dot + 1));
  const std::string name(dot == std::string_view::npos ? path : path.substr(dot + 1));
  std::set<std::string> siblings;
  for (const Option& option : options_) {
    if (option.path.compare(0, parent.size(), parent) != 0) continue;
    const std::string rest = option.path.substr(parent.size());
    siblings.insert(rest.substr(0, rest.find('.')));
  }
  const std::string near = Closest(name, {siblings.begin(), siblings.end()});
  if (!near.empty()) return fmt::format("did you mean {}{}?", parent, near);
  const std::string role = RoleStart(options_, path);
  const std::string within = fmt::format(".{}.", path);
  std::string same;
  for (const Option& option : options_) {
    if (option.path.compare(0, role.size(), role) != 0) continue;
    // A section above it was left out; it may be a section itself.
    if (const size_t at = (option.path + '.').find(within); at != std::string::npos)
      return fmt::format("did you mean {}?", option.path.substr(0, at + within.size() - 1));
    if (same.empty() && option.path.substr(option.path.rfind('.') + 1) == name) same = option.path;
  }
  if (!same.empty()) return fmt::format("did you mean {}?", same);
  return siblings.empty() ? "" : fmt::format("known here: {}", fmt::join(siblings, ", "));
}

void Schema::Apply(const YamlNode& node, const std::string& path, const std::string& source_name,
                   Position key, std::vector<Problem>& problems) {
  if (Option* option = Find(path)) {
    std::string problem;
    std::string advice;
    const auto value = Convert(*option, node, problem, advice);
    if (!value) {
      problems.push_back({node.position, problem, advice});
      return;
    }
    // Keys are added to those there are; none at all, {} or null, takes them away.
    if (option->kind == Kind::kMap && !value->empty() && option->get().is_object()) {
      Json merged = option->get();
      for (const auto& [name, item] : value->items()) merged[name] = item;
      option->set(merged);
    } else {
      option->set(*value);
    }
    option->origin = node.position.line > 0 ? fmt::format("{}:{}", source_name, node.position.line)
                                            : source_name;
    return;
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  const bool section =
      path.empty() || std::any_of(options_.begin(), options_.end(), [&](const Option& option) {
        return option.path.compare(0, prefix.size(), prefix) == 0;
      });
  if (!section) {
    problems.push_back({key, fmt::format("{}: unknown key", path), Suggest(path)});
    return;
  }
  if (node.kind == YamlNode::Kind::kNull) return;
  if (node.kind != YamlNode::Kind::kMap) {
    problems.push_back({node.position,
                        fmt::format("{}: expected a map, got {}",
                                    path.empty() ? "the document" : path, Shown(node)),
                        ""});
    return;
  }
  for (size_t i = 0; i < node.entries.size(); ++i) {
    const auto& [name, value] = node.entries[i];
    // A path in the place of a key would get past the search for duplicate keys.
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
      problems.push_back({node.key_positions[i], fmt::format("{}{}: unknown key", prefix, name),
                          fmt::format("write the part after \"{}\" on a line of its own below it",
                                      name.substr(0, dot + 1))});
      continue;
    }
    Apply(value, prefix + name, source_name, node.key_positions[i], problems);
  }
}

void Schema::ApplyOverride(const std::string& argument, std::vector<std::string>& errors) {
  const auto fail = [&](const std::string& text, const std::string& advice) {
    errors.push_back(fmt::format("command line: error: {}\n  {}{}", text, argument,
                                 advice.empty() ? "" : "\n  " + advice));
  };
  if (!argument.empty() && argument[0] == '~') {
    Option* option = Find(std::string_view(argument).substr(1));
    if (option == nullptr)
      return fail(fmt::format("{}: unknown key", argument.substr(1)), Suggest(argument.substr(1)));
    option->set(option->initial);
    option->origin = "default";
    return;
  }
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return fail("expected key=value, +key=value or ~key", "");
  }
  // Hydra's + adds a key, and its ++ also sets one that is there.
  const size_t begin = argument.starts_with("++") ? 2 : argument[0] == '+' ? 1 : 0;
  const std::string path = argument.substr(begin, equals - begin);
  const Source source{kCommandLine, argument.substr(equals + 1)};
  std::vector<Problem> problems;
  YamlNode node = ParseYaml(source, problems);
  // Positions within an argument would mislead: the argument itself is shown.
  const std::function<void(YamlNode&)> forget = [&](YamlNode& n) {
    n.position = {};
    for (YamlNode& item : n.items) forget(item);
    for (auto& entry : n.entries) forget(entry.value);
  };
  forget(node);
  // A key inside a free map: "actor_rollout_ref.model.config.hidden_size=64".
  std::string target = path;
  for (const Option& option : options_) {
    if (option.kind == Kind::kMap &&
        path.compare(0, option.path.size() + 1, option.path + ".") == 0) {
      YamlNode map;
      map.kind = YamlNode::Kind::kMap;
      map.entries.push_back({path.substr(option.path.size() + 1), node});
      map.key_positions.emplace_back();
      node = std::move(map);
      target = option.path;
    }
  }
  if (problems.empty()) Apply(node, target, kCommandLine, {}, problems);
  for (const Problem& problem : problems) fail(problem.text, problem.advice);
}

Status Schema::Load(const Source& file, const std::vector<std::string>& overrides) {
  std::vector<Problem> problems;
  const YamlNode root = ParseYaml(file, problems);
  if (root.kind == YamlNode::Kind::kNull && problems.empty() &&
      file.text.find_first_not_of(" \t\r\n") == std::string::npos && !file.text.empty()) {
    problems.push_back({{}, "the file is empty", ""});
  }
  Apply(root, "", file.name, {}, problems);
  std::vector<std::string> errors;
  for (const Problem& problem : problems) errors.push_back(Render(file, problem));
  for (const std::string& argument : overrides) ApplyOverride(argument, errors);
  if (errors.empty()) return Status::Ok();
  return Status(StatusCode::kConfig, problems.size() > kMostProblems
                                         ? Summary(errors, problems)
                                         : fmt::format("{}", fmt::join(errors, "\n")));
}

std::string Schema::Dump(bool origins) const {
  std::string text;
  std::vector<std::string> open;
  for (const Option& option : options_) {
    const std::vector<std::string> parts = SplitPath(option.path);
    size_t common = 0;
    while (common < open.size() && common + 1 < parts.size() && open[common] == parts[common])
      ++common;
    open.resize(common);
    for (size_t i = common; i + 1 < parts.size(); ++i) {
      text += std::string(2 * i, ' ') + parts[i] + ":\n";
      open.push_back(parts[i]);
    }
    std::string line =
        std::string(2 * (parts.size() - 1), ' ') + parts.back() + ": " + YamlFlow(option.get());
    if (origins) line = fmt::format("{:<60} # {}", line, option.origin);
    text += line + "\n";
  }
  return text;
}

std::string Schema::Markdown() const {
  std::string text;
  std::string section;
  for (const Option& option : options_) {
    const size_t dot = option.path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : option.path.substr(0, dot);
    if (parent != section) {
      section = parent;
      text += fmt::format("\n## {}\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                          section);
    }
    std::string type = KindName(option);
    if (option.min) type += fmt::format(", {} {}", option.exclusive_min ? ">" : ">=", *option.min);
    if (option.max) type += fmt::format(", <= {}", *option.max);
    if (option.kind == Kind::kStringList && !option.choices.empty()) {
      type += fmt::format(" of {}", fmt::join(option.choices, ", "));
    }
    if (!option.unit.empty()) type += ", " + option.unit;
    text += fmt::format("| `{}` | {} | `{}` | {} |\n", option.path.substr(dot + 1), type,
                        YamlFlow(option.initial), Meaning(option));
  }
  return text;
}

Json Schema::JsonSchema() const {
  Json root = {{"$schema", "http://json-schema.org/draft-07/schema#"},
               {"title", "Keel configuration"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  for (const Option& option : options_) {
    Json* at = &root;
    const std::vector<std::string> parts = SplitPath(option.path);
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      Json& properties = (*at)["properties"];
      if (!properties.contains(parts[i])) {
        properties[parts[i]] = {{"type", Json::array({"object", "null"})},
                                {"additionalProperties", false},
                                {"properties", Json::object()}};
      }
      at = &properties[parts[i]];
    }
    (*at)["properties"][parts.back()] = EntryOf(option);
  }
  return root;
}

}  // namespace keel::options
