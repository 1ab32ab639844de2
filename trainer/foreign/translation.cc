#include "trainer/foreign/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/options/option_value.h"
#include "common/options/yaml_text.h"
#include "common/text.h"

namespace keel::trainer::foreign {

namespace {

const options::Option* OptionIn(const options::Schema& schema, std::string_view path) {
  for (const options::Option& option : schema.options()) {
    if (option.path == path) return &option;
  }
  return nullptr;
}

// The value as the option holds it; nothing, where it does not take it: `problem` says why not.
std::optional<Json> AsHeld(const options::Option& option, const Json& value, std::string* problem) {
  std::vector<options::Problem> problems;
  const options::YamlNode node = options::ParseYaml({"value", options::YamlFlow(value)}, problems);
  std::string advice;
  std::optional<Json> held = options::Convert(option, node, *problem, advice);
  if (!held && !advice.empty()) *problem += "; " + advice;
  return held;
}

bool Same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string TargetOf(const KeyTable::Found& found, const std::string& key) {
  if (found.row->answer == Answer::kTaken) return found.path.empty() ? key : found.path;
  return std::string(found.row->target);
}

}  // namespace

Translation::Translation(std::string program, const KeyTable& table, const options::Schema& schema,
                         const GivenValues& given)
    : program_(std::move(program)), table_(table), schema_(schema), given_(given) {}

const options::Option* Translation::OptionOf(const std::string& target) const {
  return OptionIn(schema_, target);
}

void Translation::LeaveOut(const std::string& start, std::string why) {
  left_out_.emplace_back(start, std::move(why));
}

const std::string* Translation::LeftOut(const std::string& key) const {
  for (const auto& [start, why] : left_out_) {
    if (key.starts_with(start)) return &why;
  }
  return nullptr;
}

AnsweredKey* Translation::Find(const std::string& key) {
  for (AnsweredKey& answered : keys_) {
    if (answered.key == key) return &answered;
  }
  return nullptr;
}

void Translation::Put(const std::string& target, Value value, const std::string& key) {
  const auto [place, added] = values_.emplace(target, value);
  if (added) {
    said_by_[target] = key;
    return;
  }
  Value& there = place->second;
  if (value.preset) return;
  if (!there.preset && !Same(there.value, value.value)) {
    unresolved_.push_back(fmt::format("{} says {}, {} says {}, and both are {} here: keep one", key,
                                      Shown(value.value), said_by_[target], Shown(there.value),
                                      target));
    return;
  }
  there = std::move(value);
  said_by_[target] = key;
}

void Translation::Set(const std::string& target, Json value, const std::string& from) {
  const options::Option* option = OptionOf(target);
  std::string problem;
  if (option == nullptr) {
    unresolved_.push_back(fmt::format("{}: this build of Keel has no {}", from, target));
    return;
  }
  if (!AsHeld(*option, value, &problem))
    unresolved_.push_back(fmt::format("{}: {}", from, problem));
  values_[target] = {std::move(value), from, false};
}

void Translation::Unset(const std::string& target) { values_.erase(target); }

// What is not supported asks for nothing where its value is one of the row's.
void Translation::NotSupportedHere(const Given& given, const Row& row, AnsweredKey* key) {
  key->answer = Answer::kNotSupported;
  const Result<Json> value = given.not_known.empty()
                                 ? given_.Resolve(given.key, given.value)
                                 : Result<Json>(Status(StatusCode::kConfig, given.not_known[0]));
  if (!value.ok()) {
    key->asked = !row.preset.empty();
    return;
  }
  key->value = Shown(value.value());
  if (row.preset.empty()) return;
  key->asked = true;
  for (const std::string_view text : Split(row.preset, '|')) {
    Result<std::optional<Json>> nothing = std::optional<Json>();
    if (text.starts_with('=')) {
      nothing = given_.Value(std::string(text.substr(1)));
    } else {
      const Result<Json> written = ValueOfText(std::string(text), true);
      if (!written.ok()) continue;
      if (const Result<Json> resolved = given_.Resolve(given.key, written.value()); resolved.ok())
        nothing = std::optional<Json>(resolved.value());
    }
    if (nothing.ok() && nothing.value() && Same(*nothing.value(), value.value()))
      key->asked = false;
  }
}

void Translation::Take(const Given& given, const KeyTable::Found& found, AnsweredKey* key) {
  const Row& row = *found.row;
  key->target = TargetOf(found, given.key);
  const options::Option* option = OptionOf(key->target);
  if (option == nullptr) {
    NotSupportedHere(given, row, key);
    key->why = fmt::format("this build of Keel has no {}", key->target);
    return;
  }
  Result<Json> value = given.not_known.empty()
                           ? given_.Resolve(given.key, given.value)
                           : Result<Json>(Status(StatusCode::kConfig, given.not_known[0]));
  if (!value.ok()) {
    unresolved_.push_back(fmt::format("{}: {}", given.key, value.status().message()));
    // As it is written, so that whatever reads the file refuses it or shows it.
    const bool list = option->kind == options::Kind::kStringList;
    const Json as_written = list ? Json::array({given.value}) : given.value;
    Put(key->target, {as_written, "not resolved", false}, given.key);
    return;
  }
  if (value.value() == Json("???")) return;
  Json written = value.value();
  bool preset = false;
  if (!row.preset.empty() && found.rest.empty()) {
    const Result<Json> text = ValueOfText(std::string(row.preset), true);
    if (text.ok()) {
      const Result<Json> unsaid = given_.Resolve(given.key, text.value());
      preset = unsaid.ok() && Same(unsaid.value(), written);
    }
  }
  if (row.convert != nullptr && found.rest.empty()) {
    value = row.convert(written);
    if (!value.ok()) {
      key->answer = Answer::kNotSupported;
      key->asked = !preset;
      key->why = value.status().message();
      return;
    }
    if (value.value().is_discarded()) return;
  }
  // Within a free map: the keys above it, one by one.
  if (!found.rest.empty()) {
    Json map = values_.contains(key->target) ? values_.at(key->target).value : Json::object();
    Json* at = &map;
    for (const std::string_view name : Split(found.rest, '.')) at = &(*at)[std::string(name)];
    *at = value.value();
    values_[key->target] = {std::move(map), "", false};
    return;
  }
  std::string problem;
  if (!AsHeld(*option, value.value(), &problem)) {
    if (value.value().is_null()) return;  // nothing is said
    key->answer = Answer::kNotSupported;
    key->asked = true;
    key->why = problem;
    // It stays in the file, which is then refused: to leave it out would be another run.
  }
  const std::string from = row.answer == Answer::kRenamed ? given.key : "";
  Put(key->target, {value.value(), from, preset}, given.key);
}

void Translation::Answered(const Given& given, const KeyTable::Found& found, AnsweredKey* key) {
  key->key = given.key;
  key->value = Shown(given.value);
  if (const std::string* why = LeftOut(given.key)) {
    key->answer = Answer::kNotNeeded;
    key->why = *why;
    return;
  }
  if (found.row == nullptr) {
    key->known = false;
    key->asked = true;
    key->why = fmt::format("no key of {}", program_);
    return;
  }
  key->answer = found.row->answer;
  key->why = found.row->why;
  switch (found.row->answer) {
    case Answer::kNotNeeded:
      return;
    case Answer::kNotSupported:
      return NotSupportedHere(given, *found.row, key);
    case Answer::kTaken:
    case Answer::kRenamed:
      return Take(given, found, key);
  }
}

void Translation::TakePresets() {
  for (const auto& [key, row] : table_.keys()) {
    const bool taken = row->answer == Answer::kTaken || row->answer == Answer::kRenamed;
    if (!taken || row->preset.empty() || given_.Has(key) || LeftOut(key) != nullptr) continue;
    const std::string target = row->answer == Answer::kTaken ? key : std::string(row->target);
    const options::Option* option = OptionOf(target);
    if (option == nullptr || values_.contains(target)) continue;
    const Result<std::optional<Json>> preset = given_.Value(key);
    if (!preset.ok() || !preset.value()) continue;
    Json value = *preset.value();
    if (row->convert != nullptr) {
      const Result<Json> converted = row->convert(value);
      if (!converted.ok() || converted.value().is_discarded()) continue;
      value = converted.value();
    }
    std::string problem;
    const std::optional<Json> held = AsHeld(*option, value, &problem);
    if (value == Json("???") || !held || Same(*held, option->initial)) continue;
    Put(target, {value, program_ + "'s default", true}, key);
  }
}

Status Translation::HasSome(const std::string& file) const {
  const auto unknown =
      std::find_if(keys_.begin(), keys_.end(), [](const AnsweredKey& key) { return !key.known; });
  const bool some = std::any_of(keys_.begin(), keys_.end(), [](const AnsweredKey& key) {
    return key.known && key.answer != Answer::kNotNeeded;
  });
  if (some || unknown == keys_.end()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: none of its {} keys is {}'s; the first is {}. A file has its keys "
                            "from the top on, as the trainer prints them",
                            file, keys_.size(), program_, Printable(unknown->key)));
}

void Translation::TakeAll() {
  for (const Given& given : given_.all()) {
    AnsweredKey key;
    Answered(given, table_.Find(given.key), &key);
    keys_.push_back(std::move(key));
  }
  TakePresets();
}

namespace {

// Nested YAML lines of dotted paths that stand in order.
void AppendLine(const std::string& path, const Json& value, const std::string& comment,
                std::vector<std::string_view>* open, std::string* text) {
  const std::vector<std::string_view> parts = Split(path, '.');
  size_t common = 0;
  while (common < open->size() && common + 1 < parts.size() && (*open)[common] == parts[common])
    ++common;
  open->resize(common);
  for (size_t i = common; i + 1 < parts.size(); ++i) {
    *text += fmt::format("{}{}:\n", std::string(2 * i, ' '), parts[i]);
    open->push_back(parts[i]);
  }
  *text += fmt::format("{}{}: {}", std::string(2 * (parts.size() - 1), ' '), parts.back(),
                       options::YamlFlow(value));
  *text += comment.empty() ? "\n" : "  # " + Printable(comment) + "\n";
}

std::string Line(const AnsweredKey& key) {
  return fmt::format("{}: {} ({})", Printable(key.key), Printable(key.value), key.why);
}

// "critic.a, critic.b and 12 more": the keys of each reason.
std::string ByReason(const std::vector<const AnsweredKey*>& keys) {
  constexpr size_t kNamed = 3;
  std::vector<std::pair<std::string, std::vector<const AnsweredKey*>>> groups;
  for (const AnsweredKey* key : keys) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& each) { return each.first == key->why; });
    if (group == groups.end()) group = groups.insert(groups.end(), {key->why, {}});
    group->second.push_back(key);
  }
  std::string text;
  for (const auto& [why, members] : groups) {
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(members.size(), kNamed); ++i)
      names.push_back(Printable(members[i]->key));
    text += fmt::format("  {}", fmt::join(names, ", "));
    if (members.size() > kNamed) text += fmt::format(" and {} more", members.size() - kNamed);
    text += fmt::format(": {}\n", why);
  }
  return text;
}

}  // namespace

std::string Translation::Yaml(const std::string& title) const {
  std::string text = "# " + Printable(title) + "\n";
  for (const AnsweredKey& key : keys_) {
    if (key.asked) text += "# NOT TAKEN: " + Line(key) + "\n";
  }
  for (const std::string& sentence : unresolved_)
    text += "# NOT RESOLVED: " + Printable(sentence, 300) + "\n";
  std::vector<std::string_view> open;
  for (const options::Option& option : schema_.options()) {
    if (const auto found = values_.find(option.path); found != values_.end())
      AppendLine(option.path, found->second.value, found->second.from, &open, &text);
  }
  return text;
}

std::string Translation::Report(const std::string& file) const {
  size_t counts[4] = {};
  std::vector<const AnsweredKey*> asked, unknown, renamed, unneeded, quiet;
  for (const AnsweredKey& key : keys_) {
    if (!key.known) {
      unknown.push_back(&key);
      continue;
    }
    ++counts[static_cast<size_t>(key.answer)];
    if (key.asked) {
      asked.push_back(&key);
    } else if (key.answer == Answer::kRenamed) {
      renamed.push_back(&key);
    } else if (key.answer == Answer::kNotNeeded) {
      unneeded.push_back(&key);
    } else if (key.answer == Answer::kNotSupported) {
      quiet.push_back(&key);
    }
  }
  std::string text = fmt::format(
      "{}: {} of {} keys are {}'s: {} taken, {} renamed, {} not needed here, {} not supported\n",
      file, keys_.size() - unknown.size(), keys_.size(), program_, counts[0], counts[1], counts[2],
      counts[3]);
  if (!asked.empty()) text += "not supported, and asked for:\n";
  for (const AnsweredKey* key : asked) text += "  " + Line(*key) + "\n";
  if (!unknown.empty()) text += fmt::format("no keys of {}:\n", program_);
  for (const AnsweredKey* key : unknown)
    text += fmt::format("  {}: {}\n", Printable(key->key), Printable(key->value));
  if (!unresolved_.empty()) text += "not resolved:\n";
  for (const std::string& sentence : unresolved_) text += "  " + Printable(sentence, 300) + "\n";
  // Of a whole file the table says the rest better.
  constexpr size_t kMany = 100;
  if (keys_.size() <= kMany) {
    if (!renamed.empty()) text += "renamed:\n";
    for (const AnsweredKey* key : renamed)
      text += fmt::format("  {} -> {}\n", Printable(key->key), key->target);
    if (!unneeded.empty()) text += "not needed here:\n" + ByReason(unneeded);
    if (!quiet.empty())
      text += "not supported, at values that ask for nothing:\n" + ByReason(quiet);
  } else {
    text += fmt::format(
        "not needed here: {}; not supported, at values that ask for nothing: {}; --table says of "
        "each key why, and what it is called here\n",
        unneeded.size(), quiet.size());
  }
  if (!notes_.empty()) text += "notes:\n";
  for (const std::string& note : notes_) text += "  " + Printable(note, 600) + "\n";
  return text;
}

std::string TableText(const KeyTable& table, const options::Schema& schema) {
  std::string text = "| key | answer | |\n|---|---|---|\n";
  for (const Row& row : table.rows()) {
    std::string says(row.why);
    if (row.answer == Answer::kRenamed) says = fmt::format("`{}`", row.target);
    const std::string target(row.answer == Answer::kRenamed ? row.target : row.keys);
    const bool one = target.find_first_of("{*") == std::string::npos;
    const bool here = row.answer == Answer::kTaken || row.answer == Answer::kRenamed;
    if (here && one && OptionIn(schema, target) == nullptr) says += " not in this build";
    text += fmt::format("| `{}` | {} | {} |\n", row.keys, NameOf(row.answer), says);
  }
  return text;
}

}  // namespace keel::trainer::foreign
