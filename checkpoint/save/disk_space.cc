#include "checkpoint/save/disk_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/pin.h"

namespace keel::checkpoint {

SaveSize PredictSize(const SaveRequest& request, const SavePlan& plan, int64_t chunk_bytes) {
  using Bytes = IndexRecordBytes;
  Manifest manifest;  // for the size of its text
  SaveSize size;
  int64_t index = Bytes::kHeader;
  const auto add_file = [&](const std::string& path, FileRole role, int64_t bytes) {
    size.checkpoint_bytes += bytes;
    index += Bytes::kFile + static_cast<int64_t>(path.size()) +
             ChunkCount(bytes, chunk_bytes) * Bytes::kChunk;
    manifest.files.push_back({path, role, bytes, {}});
  };
  std::unordered_set<std::string_view> scopes;
  std::vector<bool> counted(plan.tensors.size(), false);
  std::map<std::string, int64_t> model_bytes;  // by role
  for (const PlannedFile& file : plan.files) {
    if (file.kind == FileRole::kModel) model_bytes[file.role] += file.size;
    if (file.kind == FileRole::kModel && !request.contents.model) {
      size.temporary_bytes += file.size;
      continue;
    }
    add_file(file.path, file.kind, file.size);
    if (scopes.insert(file.scope).second)
      index += Bytes::kScope + static_cast<int64_t>(file.scope.size());
    for (const PlannedShard& shard : file.shards) {
      index += Bytes::kBox;
      if (counted[static_cast<size_t>(shard.tensor)]) continue;
      counted[static_cast<size_t>(shard.tensor)] = true;
      index += Bytes::kTensor + static_cast<int64_t>(plan.tensor_of(shard).name.size());
    }
  }
  for (const Document& document : request.documents) {
    if (document.extra && !request.contents.extra) continue;
    add_file(document.path, document.extra ? FileRole::kExtra : FileRole::kDocument,
             static_cast<int64_t>(document.content.size()));
  }
  if (request.contents.hf_model) {
    for (const auto& [role, bytes] : model_bytes)
      add_file(role + "/huggingface/model.safetensors", FileRole::kHfModel, bytes);
  }
  manifest.roles = plan.roles;
  manifest.contents = request.contents;
  manifest.config_digest = request.config_digest;
  manifest.layout = request.layout;
  constexpr int64_t kIds = 100;  // run id, save id, date
  size.checkpoint_bytes += index + static_cast<int64_t>(manifest.Serialize().size()) + kIds;
  return size;
}

Result<DiskForecast> ForecastDisk(const FileSystem& fs, const RetentionPolicy& policy,
                                  const std::string& run_id, const SaveSize& size) {
  DiskForecast forecast;
  forecast.checkpoint_bytes = size.checkpoint_bytes;
  forecast.needed_bytes = size.total();
  KEEL_ASSIGN_OR_RETURN(forecast.free_bytes, fs.FreeBytes());
  if (!policy.keep_latest) return forecast;
  const int kept = *policy.keep_latest + policy.keep_best;
  forecast.needed_bytes += kept * size.checkpoint_bytes;
  // Those that are among the kept have their room, and what is more than these goes before a save
  // that has none; others stay beside them.
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs));
  for (const CatalogEntry& entry : entries) {
    const bool stays = !entry.manifest || entry.manifest->run_id != run_id ||
                       (policy.keep_every > 0 && entry.step % policy.keep_every == 0) ||
                       IsPinned(fs, entry.directory);
    if (stays) continue;
    forecast.needed_bytes -= std::min(size.checkpoint_bytes, entry.manifest->TotalBytes());
  }
  return forecast;
}

Status CheckRoom(const FileSystem& fs, int64_t bytes, std::string_view keep) {
  KEEL_ASSIGN_OR_RETURN(const int64_t room, fs.FreeBytes());
  if (room >= bytes) return Status::Ok();
  return Status(
      StatusCode::kNoSpace,
      fmt::format("{}: the checkpoint needs {} bytes, {} are free: make room{}", fs.Describe("."),
                  bytes, room, keep.empty() ? "" : fmt::format(", or set {}", keep)));
}

}  // namespace keel::checkpoint
