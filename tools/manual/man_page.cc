#include "tools/manual/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "common/process/program_id.h"
#include "common/status.h"

namespace keel::tools {

namespace {

constexpr std::array kVariables = {
    std::pair{"KEEL_TORCH_DIR", "The folder of PyTorch, where Keel is not to look for one itself"},
    std::pair{"KEEL_ARROW_DIR", "The folder of pyarrow, which Parquet files need, likewise"},
    std::pair{"KEEL_PYTHON",
              "The Python that runs reward functions, and whose PyTorch is taken; else that of "
              "VIRTUAL_ENV, then python3 of PATH"},
    std::pair{"KEEL_JOB_SECRET",
              "Known to all nodes of a job: who connects to its store proves it"},
    std::pair{"OMP_NUM_THREADS", "Threads of a rank"},
    std::pair{"NO_COLOR", "When set, no colours"}};

// The code point at `at`, which is moved past it; "?" for what is not UTF-8.
uint32_t NextCodePoint(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
  if ((first >= 0x80 && more == 0) || at + more >= text.size()) {
    ++at;
    return '?';
  }
  uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
  for (size_t i = 1; i <= more; ++i) code = (code << 6) | (byte(at + i) & 0x3Fu);
  at += more + 1;
  return code;
}

// A line may end after each "|", "," or ".".
std::string Breakable(std::string_view text) {
  std::string roff;
  for (const char c : RoffText(text)) {
    roff += c;
    if (c == '|' || c == ',' || c == '.') roff += "\\:";
  }
  return roff;
}

std::string Bold(std::string_view text) { return "\\fB" + RoffText(text) + "\\fR"; }

// A paragraph with a hanging tag.
std::string Tagged(const std::string& tag, std::string_view text) {
  return fmt::format(".TP\n{}\n{}\n", tag, text.empty() ? "\\&" : RoffText(text));
}

std::string Literal(std::string_view lines) {
  std::string text = ".nf\n.RS 4\n";
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    std::string_view line = lines.substr(begin, end - begin);
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (!line.empty()) text += RoffText(line) + "\n";
    begin = end + 1;
  }
  return text + ".RE\n.fi\n";
}

std::string Upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::string Head(const ManPage& page, std::string_view summary) {
  return fmt::format(
      ".TH \"{}\" \"{}\" \"\" \"keel {}\" \"Keel\"\n.ad l\n.nh\n.SH NAME\n{} \\- {}\n",
      RoffText(Upper(page.name)), page.section, ProgramVersion(), RoffText(page.name),
      RoffText(summary));
}

// "\fB\-\-form\fR \fITEXT\fR {rl,sft,dpo}, default rl".
std::string OptionTag(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold("--" + name));
  if (names.empty()) names.push_back("\\fI" + RoffText(option.get_name(true)) + "\\fR");
  std::string tag = fmt::format("{}", fmt::join(names, ", "));
  if (!TakesValue(option)) return tag;
  const std::vector<std::string> choices = ChoicesOf(option);
  const std::string type = option.get_type_name();
  const std::string kind = type.substr(0, type.find(':'));
  if (!choices.empty()) {
    tag += " " + Breakable(fmt::format("{}", fmt::join(choices, "|")));
  } else if (!option.get_positional()) {
    tag += " \\fI" + RoffText(kind) + "\\fR";
  }
  if (option.get_items_expected_max() > 1) tag += " ...";
  if (!option.get_default_str().empty())
    tag += RoffText(fmt::format(" (default {})", option.get_default_str()));
  if (option.get_required() && !option.get_positional()) tag += " (required)";
  return tag;
}

std::string Synopsis(const CLI::App& command, const std::string& words) {
  std::string line = Bold(words);
  if (words == "keel launch")
    return line + " [\\fIflags\\fR] \\fIcommand\\fR [\\fIarguments\\fR]\n.br\n" + Bold(words) +
           " [\\fIflags\\fR] \\-\\- \\fIprogram\\fR [\\fIarguments\\fR]\n";
  line += " [\\fIoptions\\fR]";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() || !option->get_required()) continue;
    line +=
        fmt::format(" {} \\fI{}\\fR", Bold("--" + option->get_lnames().front()),
                    RoffText(option->get_type_name().substr(0, option->get_type_name().find(':'))));
  }
  if (!ShownCommands(command).empty()) line += " \\fIcommand\\fR ...";
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = "\\fI" + RoffText(option->get_name(true)) + "\\fR" +
                             (option->get_items_expected_max() > 1 ? " ..." : "");
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line + "\n";
}

std::string Options(const CommandTables& tables, const CLI::App& command,
                    const std::string& words) {
  std::string positionals, options;
  for (const CLI::Option* option : command.get_options())
    (option->get_positional() ? positionals : options) +=
        Tagged(OptionTag(*option), option->get_description());
  if (words == "keel launch") {
    for (const LaunchFlag& flag : tables.launch_flags)
      options +=
          Tagged(Bold("--" + flag.name) + (flag.takes_value ? " \\fIvalue\\fR" : ""), flag.meaning);
  }
  std::string text;
  if (!positionals.empty()) text += ".SH ARGUMENTS\n" + positionals;
  if (!options.empty()) text += ".SH OPTIONS\n" + options;
  return text;
}

std::string Examples(const CLI::App& command) {
  const std::string footer = command.get_footer();
  const size_t begin = footer.find("Examples:\n");
  if (begin == std::string::npos) return "";
  return ".SH EXAMPLES\n" + Literal(std::string_view(footer).substr(begin + 10));
}

std::string ExitStatus() {
  std::map<int, std::vector<std::string>> codes;
  // All of them but ok, which is the first.
  for (int number = 1; number <= static_cast<int>(StatusCode::kInternal); ++number) {
    const auto code = static_cast<StatusCode>(number);
    codes[ExitCodeFor(code)].emplace_back(StatusCodeName(code));
  }
  std::string text = ".SH \"EXIT STATUS\"\n" + Tagged("0", "All was done.");
  for (const auto& [code, names] : codes)
    text += Tagged(std::to_string(code), fmt::format("{}", fmt::join(names, ", ")));
  return text + Tagged("128+N", "Ended by signal N before there was anything to save.");
}

std::string SeeAlso(const std::vector<std::string>& pages) {
  std::string text = ".SH \"SEE ALSO\"\n";
  for (size_t i = 0; i < pages.size(); ++i)
    text += fmt::format(".BR {} {}\n", pages[i], i + 1 < pages.size() ? "," : "");
  return text;
}

std::string Joined(const std::string& words, char with) {
  std::string text = words;
  std::replace(text.begin(), text.end(), ' ', with);
  return text;
}

void AddPages(const CommandTables& tables, const CLI::App& command, const std::string& words,
              std::vector<ManPage>& pages) {
  ManPage page{Joined(words, '-'), "1", ""};
  const bool root = &command == &tables.app;
  const std::string description = command.get_description();
  page.text = Head(page, root ? "train language models" : description) + ".SH SYNOPSIS\n" +
              Synopsis(command, words) + ".SH DESCRIPTION\n" + RoffText(description) + "\n";
  std::vector<std::string> also;
  if (!root) also.push_back(RoffText(Joined(words.substr(0, words.rfind(' ')), '-')) + " (1)");
  const auto commands = ShownCommands(command);
  page.text += Options(tables, command, words);
  if (!commands.empty()) page.text += ".SH COMMANDS\n";
  for (const CLI::App* sub : commands) {
    page.text += Tagged(Bold(sub->get_name()), sub->get_description());
    also.push_back(RoffText(Joined(words + " " + sub->get_name(), '-')) + " (1)");
  }
  const std::vector<const CLI::Option*> options = command.get_options();
  const bool configured =
      std::any_of(options.begin(), options.end(),
                  [](const CLI::Option* option) { return option->get_name(true) == "overrides"; });
  if (root || configured) also.emplace_back("keel.yaml (5)");
  if (root || words == "keel launch") {
    page.text += ".SH ENVIRONMENT\n";
    for (const auto& [name, meaning] : kVariables) page.text += Tagged(Bold(name), meaning);
  }
  page.text += ExitStatus() + Examples(command) + SeeAlso(also);
  pages.push_back(std::move(page));
  for (const CLI::App* sub : commands) AddPages(tables, *sub, words + " " + sub->get_name(), pages);
}

std::string KindOf(const options::Option& option) {
  switch (option.kind) {
    case options::Kind::kBool:
      return "true or false";
    case options::Kind::kInt:
      return "whole number";
    case options::Kind::kDouble:
      return "number";
    case options::Kind::kString:
      return "text";
    case options::Kind::kStringList:
      return "list of texts";
    case options::Kind::kIntList:
      return "list of whole numbers";
    case options::Kind::kDoubleList:
      return "list of numbers";
    case options::Kind::kMap:
      return "map";
    case options::Kind::kMapList:
      return "list of maps";
  }
  return "";
}

ManPage ConfigurationPage(const options::Schema& schema) {
  ManPage page{"keel.yaml", "5", ""};
  page.text =
      Head(page, "a configuration of keel train") + ".SH DESCRIPTION\n" +
      RoffText(
          "A YAML file. Each key may also be set on the command line: `a.b=c` sets, `~a.b` goes "
          "back to the default. Unknown and duplicate keys, anchors and tags are refused; all "
          "problems are reported at once. Paths are relative to the directory that keel is "
          "started in.") +
      "\n.SH KEYS\n";
  std::string section;
  for (const options::Option& option : schema.options()) {
    const std::string root = option.path.substr(0, option.path.find('.'));
    if (root != section) page.text += fmt::format(".SS {}\n", RoffText(root));
    section = root;
    const std::string values =
        option.choices.empty() ? KindOf(option) : fmt::format("{}", fmt::join(option.choices, "|"));
    std::string tag = "\\fB" + Breakable(option.path) + "\\fR: " + Breakable(values);
    if (!option.unit.empty()) tag += RoffText(fmt::format(" [{}]", option.unit));
    if (!option.secret) tag += Breakable(fmt::format(", default {}", option.initial.dump()));
    page.text += Tagged(tag, option.doc);
  }
  page.text += SeeAlso({"keel\\-train (1)", "keel\\-config (1)"});
  return page;
}

}  // namespace

std::string RoffText(std::string_view text) {
  std::string roff;
  bool bold = false;
  for (size_t at = 0; at < text.size();) {
    const bool line_begins = at == 0 || text[at - 1] == '\n';
    const uint32_t code = NextCodePoint(text, at);
    if (line_begins && (code == '.' || code == '\'')) roff += "\\&";
    if (code == '\\') {
      roff += "\\e";
    } else if (code == '-') {
      roff += "\\-";
    } else if (code == '\'') {
      roff += "\\(aq";
    } else if (code == '~') {
      roff += "\\(ti";
    } else if (code == '^') {
      roff += "\\(ha";
    } else if (code == '`' && (bold || text.find('`', at) != std::string_view::npos)) {
      bold = !bold;
      roff += bold ? "\\fB" : "\\fR";
    } else if (code == '`') {
      roff += "\\(ga";
    } else if (code >= 0x80) {
      roff += fmt::format("\\[u{:04X}]", code);
    } else {
      roff += static_cast<char>(code);
    }
  }
  return roff;
}

std::vector<ManPage> ManPages(const CommandTables& tables) {
  std::vector<ManPage> pages;
  AddPages(tables, tables.app, "keel", pages);
  pages.push_back(ConfigurationPage(tables.schema));
  return pages;
}

}  // namespace keel::tools
