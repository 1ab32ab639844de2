// Catalog: which checkpoints a run directory holds, read from the disk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

struct CatalogEntry {
  std::string directory;             // "global_step_40"
  int64_t step = 0;                  // of the name
  bool link = false;                 // a symbolic link of that name, which is not followed
  std::optional<Manifest> manifest;  // nothing when it does not verify
  Status status;                     // why not
};

// Says whether the reason why there is no manifest lies in what the directory holds. Otherwise it
// could not be read this time, and what it holds is not known.
bool IsUnusable(const Status& status);

// The directories named global_step_<N>, the newest commit first: by the manifests' sequence
// numbers, so that a run that went back to an earlier step resumes from what it did last. Those
// without a valid manifest come last, by step: among them links of such names, which are not
// followed. Files are not listed.
Result<std::vector<CatalogEntry>> ListCheckpoints(const FileSystem& fs);

// More than the sequence number of every commit that is there. Where one cannot be read this time
// it may be the newest, and its number is not known: then so much more that no run commits as
// often. With `floor`, more than that, which is no less than the numbers of all that cannot be
// read. kInvalidData when the numbers are used up.
Result<int64_t> NextSequence(std::span<const CatalogEntry> committed,
                             std::optional<int64_t> floor = {});
// The highest number that can be read; 0 when there is none.
int64_t NewestSequence(std::span<const CatalogEntry> committed);
// Says whether a manifest could not be read this time: by no fault of what the directory holds.
bool IsUnread(const CatalogEntry& entry);
// For who publishes a checkpoint that no run has trained: where one cannot be read this time, it
// may be the newest, and a run would resume from the other. An error that names it.
Status CheckAllRead(const FileSystem& fs, std::span<const CatalogEntry> committed);

// The same again and again, of one directory, at a cost that hardly grows with what is kept: the
// manifest of a commit never changes, so one that was read is read again only when another file has
// taken its place. Damage since then is not seen: whoever removes something lists afresh.
class Catalog {
 public:
  Result<std::vector<CatalogEntry>> List(const FileSystem& fs);

 private:
  struct Known {
    FileInfo file;
    Manifest manifest;
  };

  Result<Manifest> Read(const FileSystem& fs, const std::string& directory);

  std::map<std::string, Known> known_;  // by directory
};

// Returns what lies in a checkpoint's directory and is not of it: paths below `directory`, sorted.
// Neither manifest, index, the files that the manifest lists nor a pin; links always; directories
// never, as an empty one holds nothing of anyone.
Result<std::vector<std::string>> ForeignEntries(const FileSystem& fs, std::string_view directory,
                                                const Manifest& manifest);

}  // namespace keel::checkpoint
