#include "trainer/run/judged_by.h"

#include <algorithm>
#include <set>

#include "checkpoint/format/manifest.h"

namespace keel::trainer {

ReadContents JudgedByOf(const ReadContents& read) {
  ReadContents judged;
  for (const auto& [what, content] : read) {
    for (const char* part : {"data.val_files", "data.val_split", "validation samples", "reward"})
      if (what.find(part) != std::string::npos) judged.emplace(what, content);
  }
  return judged;
}

ReadContents JudgedByOf(const FileSystem& files, const std::string& directory) {
  const auto text = ReadFile(files, directory + "/data_state.json", checkpoint::kMaxManifestBytes);
  if (!text.ok()) return {};
  const Result<ReadContents> read = ContentsOf(*text);
  return read.ok() ? JudgedByOf(*read) : ReadContents();
}

namespace {

// Rows come by either of two keys.
std::set<std::string> RowKeys(const ReadContents& judged) {
  std::set<std::string> keys;
  for (const auto& [what, content] : judged)
    if (what.find("data.val_") != std::string::npos) keys.insert(what);
  return keys;
}

}  // namespace

bool JudgedAlike(const ReadContents& one, const ReadContents& other) {
  const std::set<std::string> rows = RowKeys(one), others = RowKeys(other);
  if (!rows.empty() && !others.empty() && rows != others) return false;
  return std::ranges::all_of(one, [&](const auto& content) {
    const auto found = other.find(content.first);
    return found == other.end() || found->second == content.second;
  });
}

}  // namespace keel::trainer
