#include "common/process/program_files.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string_view>

#include "common/hash.h"

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
    if (counts && std::filesystem::is_regular_file(word, none)) digests[word] = DigestOf(word);
  }
  return digests;
}

}  // namespace keel
