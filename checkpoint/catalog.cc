#include "checkpoint/catalog.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "checkpoint/names.h"

namespace keel::checkpoint {

Result<std::vector<CatalogEntry>> ListCheckpoints(const FileSystem& fs) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> names, fs.List("."));
  std::vector<CatalogEntry> entries;
  for (const FileInfo& info : names) {
    const std::optional<int64_t> step = ParseStepDirectory(info.name);
    if (!step || info.kind != FileKind::kDirectory) continue;
    CatalogEntry entry;
    entry.directory = info.name;
    entry.step = *step;
    Result<Manifest> manifest = ReadManifest(fs, info.name);
    if (manifest.ok()) {
      entry.manifest = std::move(manifest).value();
    } else {
      entry.status = manifest.status();
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const CatalogEntry& a, const CatalogEntry& b) {
    const auto key = [](const CatalogEntry& e) {
      return std::tuple(e.manifest.has_value(), e.manifest ? e.manifest->sequence : 0, e.step);
    };
    return key(a) > key(b);
  });
  return entries;
}

}  // namespace keel::checkpoint
