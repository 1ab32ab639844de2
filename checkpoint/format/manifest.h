// Manifest: the one file that makes a directory a checkpoint. Written last, read first.
//
// It lists every file with size and digest, so that nothing that is missing, foreign, older or
// damaged can pass, and ends with a digest of itself. The reader is strict: a field that is
// missing, unknown or of another type is an error. docs/formats/manifest.md describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/contents.h"
#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::checkpoint {

inline constexpr std::string_view kManifestFormat = "keel-checkpoint";
inline constexpr int kManifestMajor = 1;
inline constexpr int kManifestMinor = 0;
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// What a file is for: decides which loads need it.
enum class FileRole { kModel, kOptimizer, kDocument, kExtra, kHfModel };
std::string_view FileRoleName(
    FileRole role);  // "model", "optimizer", "document", "extra", "hf_model"

struct ManifestFile {
  std::string path;  // relative to the step's directory
  FileRole role = FileRole::kDocument;
  int64_t size = 0;
  Digest128 digest;  // ChunkedDigest::whole
};

struct Manifest {
  // The limit of any number, and of all files together: what follows from them by adding is a
  // number too.
  static constexpr int64_t kMaxNumber = int64_t{1} << 62;

  std::string run_id;
  std::string save_id;
  int64_t sequence =
      0;  // 1 for the first commit of a run directory; the newest commit has the highest
  int64_t step = 0;
  std::string created;  // UTC, for people
  std::string config_digest;
  Json layout = Json::object();
  std::vector<std::string> roles;
  Contents contents;
  std::optional<double> metric;
  int64_t chunk_bytes = 0;
  int64_t index_size = 0;
  Digest128 index_digest;
  std::vector<ManifestFile> files;  // sorted by path; without manifest.json and index.bin
  std::string own_digest;           // set by Parse: stands for the checkpoint as a whole

  const ManifestFile* Find(std::string_view path) const;
  int64_t TotalBytes() const;  // of files and index

  // The text of manifest.json, its own digest last.
  std::string Serialize() const;
  // The digest that ends a serialized manifest.
  static std::string_view OwnDigest(std::string_view text);
  // `where` stands first in messages. kDataLoss when the text does not carry its own digest;
  // kInvalidData when it is intact but not understood (a newer major version, a broken rule).
  static Result<Manifest> Parse(std::string_view text, std::string_view where);
};

// Reads and parses `directory`/manifest.json. Also kInvalidData when the step is not the one that
// the directory's name gives, if it gives one: somebody has renamed a whole checkpoint, and to go
// on from an older one would lose work.
Result<Manifest> ReadManifest(const FileSystem& fs, std::string_view directory);
// The two steps of that.
Result<std::string> ReadManifestText(const FileSystem& fs, std::string_view directory);
Result<Manifest> ParseManifest(const FileSystem& fs, std::string_view directory,
                               std::string_view text);

}  // namespace keel::checkpoint
