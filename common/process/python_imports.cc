#include "common/process/python_imports.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

namespace keel {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 2000;

std::string_view Stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r;") - begin + 1);
}

// The first word, and the text behind it.
std::string_view TakeWord(std::string_view* text) {
  const size_t end = std::min(text->find_first_of(" \t"), text->size());
  const std::string_view word = text->substr(0, end);
  *text = Stripped(text->substr(end));
  return word;
}

// "a.b.c" of the modules that one line imports: "a.b as x, c" has two.
std::vector<std::string> NamesOf(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view one = Stripped(list.substr(0, comma));
    if (one.starts_with('(')) one = Stripped(one.substr(1));
    if (const std::string_view name = TakeWord(&one); !name.empty()) names.emplace_back(name);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

class Search {
 public:
  explicit Search(std::vector<std::string> folders) : folders_(std::move(folders)) {}

  std::map<std::string, std::string> From(const std::string& script) {
    std::error_code none;
    seen_.insert(fs::weakly_canonical(script, none));
    open_.emplace_back(script);
    while (!open_.empty()) {
      const fs::path file = fs::absolute(open_.front(), none);
      open_.pop_front();
      std::ifstream in(file);
      for (std::string line; std::getline(in, line);) Look(Stripped(line), file.parent_path());
    }
    return std::move(found_);
  }

 private:
  void Look(std::string_view line, const fs::path& folder) {
    const std::string_view what = TakeWord(&line);
    if (what == "import") {
      for (const std::string& name : NamesOf(line)) FindAnywhere(name);
    } else if (what == "from") {
      const std::string_view name = TakeWord(&line);
      const size_t dots = std::min(name.find_first_not_of('.'), name.size());
      if (dots == 0) return FindAnywhere(std::string(name));
      fs::path base = folder;
      for (size_t i = 1; i < dots; ++i) base = base.parent_path();
      if (dots < name.size()) return (void)Find(base, base, std::string(name.substr(dots)));
      if (TakeWord(&line) != "import") return;
      for (const std::string& one : NamesOf(line)) Find(base, base, one);
    }
  }

  void FindAnywhere(const std::string& module) {
    for (const fs::path folder : folders_)
      if (Find(folder, folder, module)) return;
  }

  // The module's file, or all of the package that its name begins with.
  bool Find(const fs::path& folder, const fs::path& named_from, const std::string& module) {
    const std::string first = module.substr(0, module.find('.'));
    if (first.empty()) return false;
    std::error_code none;
    const fs::path package = folder / first;
    if (fs::is_directory(package, none) && AddAllOf(package, named_from)) return true;
    const fs::path file = folder / (first + ".py");
    if (!fs::is_regular_file(file, none)) return false;
    Add(file, named_from);
    return true;
  }

  bool AddAllOf(const fs::path& package, const fs::path& named_from) {
    std::vector<fs::path> files;
    std::error_code error;
    fs::recursive_directory_iterator entry(package, error);
    for (const fs::recursive_directory_iterator end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().native();
      std::error_code none;
      if (entry->is_directory(none)) {
        if (name.starts_with('.') || name == "__pycache__" || name == "site-packages")
          entry.disable_recursion_pending();
      } else if (entry->path().extension() == ".py" && entry->is_regular_file(none)) {
        files.push_back(entry->path());
      }
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) Add(file, named_from);
    return !files.empty();
  }

  void Add(const fs::path& file, const fs::path& named_from) {
    std::error_code none;
    if (found_.size() >= kMostFiles || !seen_.insert(fs::weakly_canonical(file, none)).second)
      return;
    found_.emplace(fs::relative(file, named_from, none).native(), file.native());
    open_.push_back(file);
  }

  const std::vector<std::string> folders_;
  std::set<fs::path> seen_;
  std::deque<fs::path> open_;
  std::map<std::string, std::string> found_;
};

}  // namespace

std::map<std::string, std::string> PythonImports(const std::string& script,
                                                 const std::vector<std::string>& folders) {
  return Search(folders).From(script);
}

std::vector<std::string> PythonPathFolders() {
  std::vector<std::string> folders;
  const char* const path = std::getenv("PYTHONPATH");  // NOLINT(concurrency-mt-unsafe): at start
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    if (colon > 0) folders.emplace_back(rest.substr(0, colon));
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return folders;
}

}  // namespace keel
