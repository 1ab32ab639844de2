#include "checkpoint/run/run_identity.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/format/names.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

constexpr size_t kMostNamed = 8;

}  // namespace

bool IsForeign(const Manifest& manifest, std::string_view run_id) {
  return manifest.run_id != run_id && manifest.run_id != kImportedRunId;
}

Result<std::string> ReadRunId(const FileSystem& fs) {
  // What a power cut leaves of a file, or an editor adds to a line.
  constexpr std::string_view kNothing("\0 \t\r\n", 5);
  Result<std::string> text = ReadFile(fs, kRunIdName, 64);
  if (text.status().code() == StatusCode::kNotFound) return std::string();
  KEEL_RETURN_IF_ERROR(text.status());
  const size_t begin = text->find_first_not_of(kNothing);
  if (begin == std::string::npos) return std::string();
  const std::string id = text->substr(begin, text->find_last_not_of(kNothing) + 1 - begin);
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (plain && id != kImportedRunId) return id;
  return Status(
      StatusCode::kConfig,
      fmt::format("{}: '{}' is no id of a run, expected one line without spaces, other than '{}': "
                  "write the id of the run there, as its checkpoints have it (keel ckpt inspect), "
                  "or remove the file, and the checkpoints say it",
                  fs.Describe(kRunIdName), Printable(id), kImportedRunId));
}

Status CheckRole(const FileSystem& fs, std::span<const CatalogEntry> entries,
                 std::string_view run_id, const std::string& role) {
  for (const CatalogEntry& entry : entries) {
    if (!entry.manifest || entry.manifest->run_id != run_id) continue;
    const std::vector<std::string>& roles = entry.manifest->roles;
    if (roles.empty() || std::ranges::find(roles, role) != roles.end()) continue;
    return Status(
        StatusCode::kConfig,
        fmt::format("{} holds the roles {}, and no '{}': this is the folder of another kind of "
                    "program (keel train saves the role actor, Keel's library the role state): "
                    "give this one a folder of its own",
                    fs.Describe(entry.directory), fmt::join(roles, ", "), role));
  }
  return Status::Ok();
}

std::string NameWithRuns(std::span<const CatalogEntry* const> entries) {
  std::string text;
  for (size_t i = 0; i < entries.size() && i < kMostNamed; ++i) {
    text += fmt::format("{}{} (run {})", i > 0 ? ", " : "", entries[i]->directory,
                        Printable(entries[i]->manifest->run_id));
  }
  if (entries.size() > kMostNamed) text += fmt::format(" and {} more", entries.size() - kMostNamed);
  return text;
}

Result<std::string> IdOfCheckpoints(const FileSystem& fs, std::span<const CatalogEntry> entries,
                                    bool adopt, std::string_view adopt_setting) {
  std::vector<const CatalogEntry*> saved;  // newest first
  for (const CatalogEntry& entry : entries) {
    if (entry.manifest && entry.manifest->run_id != kImportedRunId) saved.push_back(&entry);
  }
  if (saved.empty()) return std::string();
  const std::string& newest = saved.front()->manifest->run_id;
  const bool agree = std::all_of(saved.begin(), saved.end(), [&](const CatalogEntry* one) {
    return one->manifest->run_id == newest;
  });
  if (agree || adopt) return newest;
  return Status(
      StatusCode::kConfig,
      fmt::format("{} is missing or empty, and the checkpoints there are of several runs: {}. "
                  "Whose the folder is cannot be told: write the id of the run that is to go on "
                  "into {}, or move the others' checkpoints away, or set {} to true to go on from "
                  "the newest one",
                  fs.Describe(kRunIdName), NameWithRuns(saved), fs.Describe(kRunIdName),
                  adopt_setting));
}

}  // namespace keel::checkpoint
