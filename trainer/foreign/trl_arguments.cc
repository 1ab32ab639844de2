#include "trainer/foreign/trl_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/text.h"

namespace keel::trainer::foreign {

namespace {

// Of arguments that still say the same.
constexpr std::pair<std::string_view, std::string_view> kEarlierNames[] = {
    {"max_seq_length", "max_length"},
    {"torch_dtype", "dtype"},
    {"evaluation_strategy", "eval_strategy"},
};

bool IsOneOf(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// "sft" alone is also a loss of TRL's, and a value of other arguments.
std::optional<TrlMethod> MethodOfLaunch(const std::string& word, const std::string& before) {
  const bool program = before == "trl" || before == "trl.cli" || before.ends_with("/trl");
  for (const auto& [method, name] : kEnumNames<TrlMethod>) {
    const std::string text(name);
    if ((program && word == text) || word.ends_with("/" + text + ".py") || word == text + ".py" ||
        word == "trl.scripts." + text)
      return method;
  }
  return std::nullopt;
}

// A program of one's own, as far as its name says: run_sft.py, grpo_vlm.py.
bool IsNamedAfter(const std::string& word, TrlMethod method) {
  const std::string name = word.substr(word.rfind('/') + 1);
  return name.ends_with(".py") && name.find(NameOf(method)) != std::string::npos;
}

// argparse takes the beginning of a name for it, where no other begins so.
std::string InFull(const std::string& name, const KeyTable& table) {
  if (table.Find(name).row != nullptr) return name;
  const auto first = table.keys().lower_bound(name);
  const auto begins = [&](auto at) {
    return at != table.keys().end() && at->first.starts_with(name);
  };
  return begins(first) && !begins(std::next(first)) ? first->first : name;
}

}  // namespace

Result<Launch> FindTrlLaunch(const ImportRequest& request, std::optional<TrlMethod>* method) {
  const std::string expected = "trl sft, trl dpo or trl grpo";
  const std::optional<TrlMethod> wanted = *method;
  std::optional<TrlMethod> said;
  const auto launches = [&](const std::string& word, const std::string& before) {
    const std::optional<TrlMethod> found = MethodOfLaunch(word, before);
    if (found) said = found;
    return found && (!wanted || found == wanted);
  };
  Result<Launch> launch = FindLaunch(request, expected, launches);
  if (launch.ok()) {
    if (!wanted) *method = said;
    return launch;
  }
  if (said && wanted && said != wanted) {
    return Status(StatusCode::kConfig,
                  fmt::format("{} launches trl {}, --method says {}", request.file.name,
                              NameOf(*said), NameOf(*wanted)));
  }
  if (said) return launch;
  if (!wanted) {
    return Status(StatusCode::kConfig,
                  launch.status().message() + "; --method says what a program of your own is");
  }
  const auto is_own = [&](const std::string& word, const std::string&) {
    return IsNamedAfter(word, *wanted);
  };
  return FindLaunch(
      request, fmt::format("{}, or a program named after {}", expected, NameOf(*wanted)), is_own);
}

void AddArguments(const ShellCommand& command, const KeyTable& table, GivenValues* given,
                  std::vector<std::string>* unresolved) {
  for (size_t i = 0; i < command.words.size();) {
    const ShellWord& word = command.words[i++];
    if (!word.text.starts_with("--")) {
      const std::string why = word.not_known.empty() ? "" : ": " + word.not_known.front();
      unresolved->push_back(fmt::format("{}{} is no --name{}", LineOf(word), word.text, why));
      continue;
    }
    const size_t equals = word.text.find('=');
    Given argument{
        word.text.substr(2, equals == std::string::npos ? equals : equals - 2), true, {}};
    for (char& c : argument.key) c = c == '-' ? '_' : c;
    std::vector<Json> values;
    const auto add = [&](const std::string& text, const std::vector<std::string>& not_known) {
      const Result<Json> value = ValueOfText(text, false);
      values.push_back(value.ok() && not_known.empty() ? value.value() : Json(text));
      argument.not_known.insert(argument.not_known.end(), not_known.begin(), not_known.end());
    };
    if (equals != std::string::npos) add(word.text.substr(equals + 1), word.not_known);
    while (i < command.words.size() && !command.words[i].text.starts_with("--")) {
      add(command.words[i].text, command.words[i].not_known);
      ++i;
    }
    if (values.size() == 1) argument.value = values[0];
    if (values.size() > 1) argument.value = values;
    if (argument.key.starts_with("no_") && values.empty()) {
      argument.key.erase(0, 3);
      argument.value = false;
    }
    if (argument.key == "config") {
      unresolved->push_back(fmt::format(
          "--config {0}: the values of that file are not here: import it, with the command's other "
          "arguments behind it: keel config import-trl {0} --method ... -- --name value",
          argument.value.is_string() ? argument.value.get<std::string>() : Shown(argument.value)));
      continue;
    }
    argument.key = InFull(argument.key, table);
    given->Remove(argument.key);
    given->AddLeaves(std::move(argument));
  }
}

void RenameEarlier(GivenValues* given, std::vector<std::string>* notes) {
  for (const auto& [earlier, today] : kEarlierNames) {
    const std::string from(earlier), to(today);
    if (!given->Has(from) || given->Has(to)) continue;
    for (Given argument : given->all()) {
      if (argument.key != from) continue;
      argument.key = to;
      given->Remove(from);
      given->Add(std::move(argument));
      break;
    }
    notes->push_back(fmt::format("{} is called {} by {}", from, to, kTrl));
  }
}

std::optional<double> AsNumber(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  std::string text(Trim(value.get<std::string>()));
  std::erase(text, '_');
  if (text.starts_with('+')) text.erase(0, 1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return number;
}

Json Arguments::Value(const std::string& key) const {
  const Result<std::optional<Json>> value = given_.Value(key);
  return value.ok() && value.value() ? *value.value() : Json(nullptr);
}

double Arguments::Number(const std::string& key, double otherwise) const {
  const Json value = Value(key);
  if (value.is_null()) return otherwise;
  if (const std::optional<double> number = AsNumber(value)) return *number;
  unread_.emplace(key, "a number");
  return otherwise;
}

bool Arguments::Flag(const std::string& key) const {
  const Json value = Value(key);
  if (value.is_null()) return false;
  std::string word = value.is_string() ? value.get<std::string>() : "";
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (value == true || IsOneOf(word, {"true", "yes", "t", "y", "1"})) return true;
  if (value != false && !IsOneOf(word, {"false", "no", "f", "n", "0"}))
    unread_.emplace(key, "true or false");
  return false;
}

int64_t Arguments::Whole(const std::string& key, int64_t otherwise) const {
  return static_cast<int64_t>(Number(key, static_cast<double>(otherwise)));
}

std::string Arguments::Text(const std::string& key) const {
  const Json value = Value(key);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace keel::trainer::foreign
