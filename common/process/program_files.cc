#include "common/process/program_files.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string_view>

#include "common/hash.h"
#include "common/process/python_imports.h"

namespace keel {

namespace {

bool SaysWhatIsDone(const std::filesystem::path& argument) {
  static const std::set<std::string_view> kEndings = {
      ".bash", ".ini", ".jar", ".jl", ".js", ".json", ".lua",  ".mjs", ".php",  ".pl",
      ".py",   ".pyz", ".r",   ".R",  ".rb", ".sh",   ".toml", ".ts",  ".yaml", ".yml"};
  return kEndings.contains(argument.extension().native());
}

std::string DigestOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 1 << 16> piece;
  Hasher128 hasher;
  while (in.read(piece.data(), piece.size()) || in.gcount() > 0)
    hasher.Update(std::as_bytes(std::span(piece.data(), static_cast<size_t>(in.gcount()))));
  return in.eof() ? "digest " + hasher.Finish().ToHex() : "cannot be read";
}

}  // namespace

std::map<std::string, std::string> ProgramFileDigests(const std::vector<std::string>& command) {
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    const bool counts =
        i == 0 ? word.find('/') != std::string::npos : SaysWhatIsDone(std::filesystem::path(word));
    std::error_code none;
    if (!counts || !std::filesystem::is_regular_file(word, none)) continue;
    digests[word] = DigestOf(word);
    const std::filesystem::path path(word);
    if (path.extension() != ".py") continue;
    for (const auto& [name, digest] : ImportDigests(word, {path.parent_path().native()}))
      digests[fmt::format("{}, which {} imports,", name, path.filename().native())] = digest;
  }
  return digests;
}

std::string FirstChanged(const std::map<std::string, std::string>& begun,
                         const std::map<std::string, std::string>& now) {
  for (const auto& [file, digest] : begun) {
    const auto found = now.find(file);
    if (found == now.end() || found->second != digest) return file;
  }
  return "";
}

std::map<std::string, std::string> ImportDigests(const std::string& script,
                                                 const std::vector<std::string>& folders) {
  std::vector<std::string> all = folders;
  const std::vector<std::string> more = PythonPathFolders();
  all.insert(all.end(), more.begin(), more.end());
  std::map<std::string, std::string> digests;
  for (const auto& [name, path] : PythonImports(script, all)) digests[name] = DigestOf(path);
  return digests;
}

}  // namespace keel
