#include "checkpoint/run/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/run/tracker.h"

namespace keel::checkpoint {
namespace {

// More commits than a run directory will ever see.
constexpr int64_t kBeyondUnread = int64_t{1} << 32;

// Adds what is foreign below `directory`/`below`; `below` is empty or ends with a slash.
Status CollectForeign(const FileSystem& fs, std::string_view directory, const std::string& below,
                      const Manifest& manifest, std::vector<std::string>* foreign) {
  const std::string here = fmt::format("{}/{}", directory, below);
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> infos,
                        fs.List(std::string_view(here).substr(0, here.size() - 1)));
  for (const FileInfo& info : infos) {
    const std::string path = below + info.name;
    if (info.kind == FileKind::kDirectory) {
      KEEL_RETURN_IF_ERROR(CollectForeign(fs, directory, path + "/", manifest, foreign));
      continue;
    }
    const bool known = path == kManifestName || path == kIndexName || path == kPinName ||
                       manifest.Find(path) != nullptr;
    if (!known || info.kind != FileKind::kFile) foreign->push_back(path);
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> ForeignEntries(const FileSystem& fs, std::string_view directory,
                                                const Manifest& manifest) {
  std::vector<std::string> foreign;
  KEEL_RETURN_IF_ERROR(CollectForeign(fs, directory, "", manifest, &foreign));
  return foreign;
}

bool IsUnusable(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kInvalidData ||
         status.code() == StatusCode::kNotFound;
}

Result<Manifest> Catalog::Read(const FileSystem& fs, const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kManifestName);
  const Result<FileInfo> file = fs.Stat(path);
  if (file.ok() && file->kind != FileKind::kFile)
    return Status(StatusCode::kInvalidData, fmt::format("{}: is not a file", fs.Describe(path)));
  const auto known = known_.find(directory);
  if (known != known_.end()) {
    const FileInfo& then = known->second.file;
    if (file.ok() && file->inode == then.inode && file->size == then.size &&
        file->changed_ns == then.changed_ns)
      return known->second.manifest;
    known_.erase(known);
  }
  Result<Manifest> manifest = ReadManifest(fs, directory);
  if (file.ok() && manifest.ok()) known_.insert_or_assign(directory, Known{*file, *manifest});
  return manifest;
}

Result<std::vector<CatalogEntry>> Catalog::List(const FileSystem& fs) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> names, fs.List("."));
  std::vector<CatalogEntry> entries;
  for (const FileInfo& info : names) {
    const std::optional<int64_t> step = ParseStepDirectory(info.name);
    const bool link = info.kind == FileKind::kLink;
    if (!step || (info.kind != FileKind::kDirectory && !link)) continue;
    CatalogEntry entry;
    entry.directory = info.name;
    entry.step = *step;
    entry.link = link;
    Result<Manifest> manifest =
        link ? Status(StatusCode::kInvalidData,
                      fmt::format("{}: is a symbolic link, which is never followed: put the "
                                  "checkpoint itself in its place",
                                  fs.Describe(info.name)))
             : Read(fs, info.name);
    if (manifest.ok()) {
      entry.manifest = std::move(manifest).value();
    } else {
      entry.status = manifest.status();
    }
    entries.push_back(std::move(entry));
  }
  std::erase_if(known_, [&](const auto& known) {
    return std::none_of(names.begin(), names.end(),
                        [&](const FileInfo& info) { return info.name == known.first; });
  });
  std::sort(entries.begin(), entries.end(), [](const CatalogEntry& a, const CatalogEntry& b) {
    const auto key = [](const CatalogEntry& e) {
      return std::tuple(e.manifest.has_value(), e.manifest ? e.manifest->sequence : 0, e.step);
    };
    return key(a) > key(b);
  });
  return entries;
}

Result<std::vector<CatalogEntry>> ListCheckpoints(const FileSystem& fs) {
  Result<std::vector<CatalogEntry>> entries = Catalog().List(fs);
  // Beside a run that keeps one, a listing may pass by the newer one, and then find the older gone.
  const auto seen = [](const CatalogEntry& entry) { return entry.manifest.has_value(); };
  for (int again = 0; again < 8 && entries.ok() &&
                      std::none_of(entries->begin(), entries->end(), seen) && ReadTracker(fs);
       ++again)
    entries = Catalog().List(fs);
  return entries;
}

bool IsUnread(const CatalogEntry& entry) {
  return !entry.manifest && !entry.link && !IsUnusable(entry.status);
}

Status CheckAllRead(const FileSystem& fs, std::span<const CatalogEntry> committed) {
  const auto unread = std::find_if(committed.begin(), committed.end(), IsUnread);
  if (unread == committed.end()) return Status::Ok();
  return unread->status.WithContext(
      fmt::format("{} cannot be read, and a run would resume from what is to be published here "
                  "instead of it; make it readable, or move it away",
                  fs.Describe(unread->directory)));
}

int64_t NewestSequence(std::span<const CatalogEntry> committed) {
  int64_t newest = 0;
  for (const CatalogEntry& entry : committed) {
    if (entry.manifest) newest = std::max(newest, entry.manifest->sequence);
  }
  return newest;
}

Result<int64_t> NextSequence(std::span<const CatalogEntry> committed,
                             std::optional<int64_t> floor) {
  const int64_t newest = std::max(floor.value_or(0), NewestSequence(committed));
  const bool all_known = floor || std::none_of(committed.begin(), committed.end(), IsUnread);
  if (!all_known && newest < Manifest::kMaxNumber - kBeyondUnread) return newest + kBeyondUnread;
  if (newest < Manifest::kMaxNumber) return newest + 1;
  return Status(StatusCode::kInvalidData,
                fmt::format("sequence number {} of a checkpoint leaves none for a newer one: move "
                            "that checkpoint away",
                            newest));
}

}  // namespace keel::checkpoint
