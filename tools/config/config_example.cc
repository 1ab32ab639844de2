// keel config example: the configurations that come with Keel, wherever it is installed.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <system_error>

#include "common/process/shared_module.h"
#include "common/status.h"
#include "common/text.h"
#include "tools/command.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

// Of an installation, or of the tree that this was built in.
fs::path Folder() {
  const fs::path program = ProgramDirectory();
  for (const char* folder : {"../share/keel/configs", "../../configs"}) {
    std::error_code error;
    if (fs::is_directory(program / folder, error)) return (program / folder).lexically_normal();
  }
  throw Error(StatusCode::kNotFound,
              fmt::format("no configurations in {}: the installation is not whole, install Keel "
                          "again",
                          (program / "../share/keel/configs").lexically_normal().string()));
}

// {name: text}.
std::map<std::string, std::string> Configurations(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    found[entry.path().stem()] = std::string((std::istreambuf_iterator<char>(file)), {});
  }
  return found;
}

// The first sentence of the comment that it begins with, after the editor's line.
std::string Title(const std::string& text) {
  const size_t first = text.starts_with("# yaml-language-server") ? text.find('\n') + 1 : 0;
  const size_t begin = text.find_first_not_of("# ", first);
  if (begin == std::string::npos || text[first] != '#') return "";
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.substr(0, std::min(line.find(". "), line.find(':')));
}

void Show(const std::string& name) {
  const fs::path folder = Folder();
  const auto all = Configurations(folder);
  if (name.empty()) {
    fmt::print("{}\n", folder.string());
    for (const auto& [known, text] : all) fmt::print("  {:<16} {}\n", known, Title(text));
    return;
  }
  const std::string stem = name.ends_with(".yaml") ? name.substr(0, name.size() - 5) : name;
  const auto found = all.find(stem);
  if (found != all.end()) return fmt::print("{}", found->second);
  std::vector<std::string> names;
  for (const auto& [known, text] : all) names.push_back(known);
  throw Error(StatusCode::kUsage,
              fmt::format("no configuration {} in {}; there are {}", Printable(name),
                          folder.string(), fmt::join(names, ", ")));
}

}  // namespace

void AddConfigExample(CLI::App& config) {
  auto name = std::make_shared<std::string>();
  CLI::App* example =
      config.add_subcommand("example", "Print a configuration that comes with Keel, or list them");
  example->add_option("NAME", *name, "As in the list; none: the list");
  example->footer(
      "Examples:\n"
      "  keel config example\n"
      "  keel config example quickstart > quickstart.yaml\n"
      "  keel config example grpo");
  example->callback([name] { Show(*name); });
}

}  // namespace keel::tools
