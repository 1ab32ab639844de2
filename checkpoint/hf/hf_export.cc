#include "checkpoint/hf/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/box_stream.h"
#include "checkpoint/run/lease.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/json.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kTiedHead = "lm_head.weight";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr int64_t kHeaderAlignment = 8;  // as the format's own library does

// An export to NAME is made in `.NAME.<save id>.partial` and then renamed. The file
// `.NAME.<save id>.lock`, there before it and after it, is locked for as long as someone writes.
constexpr std::string_view kLockEnd = ".lock";
constexpr std::string_view kPartialEnd = ".partial";

// The save id of one of these names; nothing for names that we did not make.
std::optional<std::string_view> IdIn(std::string_view entry, std::string_view name) {
  const std::string begin = fmt::format(".{}.", name);
  if (!entry.starts_with(begin)) return std::nullopt;
  entry.remove_prefix(begin.size());
  const std::string_view id = entry.substr(0, entry.find('.'));
  const std::string_view end = entry.substr(id.size());
  if (!IsSaveId(id) || (end != kLockEnd && end != kPartialEnd)) return std::nullopt;
  return id;
}

std::string ScratchOf(std::string_view name, std::string_view id, std::string_view end) {
  return fmt::format(".{}.{}{}", name, id, end);
}

// Removes what earlier exports to `name` left when they were killed.
void CollectPartials(FileSystem& out, std::string_view name, Logger& log) {
  const Result<std::vector<FileInfo>> entries = out.List(".");
  if (!entries.ok()) return;
  for (const FileInfo& info : *entries) {  // of an id the lock first
    const std::optional<std::string_view> id = IdIn(info.name, name);
    if (!id || (info.kind != FileKind::kFile && info.kind != FileKind::kDirectory)) continue;
    const auto lock =
        out.LockFile(ScratchOf(name, *id, kLockEnd), FileSystem::LockMode::kExclusive);
    // Otherwise someone writes there, or that cannot be told.
    if (!lock.ok() && lock.status().code() != StatusCode::kNotFound) continue;
    if (const Status status = RemoveTree(out, info.name); !status.ok()) {
      log.Warning("{}, left by an interrupted export, could not be removed: {}",
                  out.Describe(info.name), status.message());
    }
  }
}

// Held while an export is written. Null where the file system knows no locks; nobody collects
// there.
Result<Lease> TakeLock(FileSystem& out, const std::string& path) {
  KEEL_RETURN_IF_ERROR(out.Create(path, {}).status());
  Result<Lease> lock = out.LockFile(path, FileSystem::LockMode::kExclusive);
  if (lock.status().code() == StatusCode::kUnavailable) return Lease();
  KEEL_RETURN_IF_ERROR(lock.status());
  // Collected before it was locked, it would say nothing to anyone.
  KEEL_RETURN_IF_ERROR(out.Stat(path).status());
  return lock;
}

bool TiesEmbeddings(std::string_view config) {
  if (config.empty()) return false;
  const Result<Json> root = ParseJson(config, "config.json");
  return root.ok() && root->is_object() && root->value("tie_word_embeddings", false);
}

// Writes whole tensors of a scope to one plain file.
Result<ChunkedDigest> WriteShard(const StepReader& reader, std::string_view scope,
                                 const std::vector<TensorInfo>& tensors, FileSystem& out,
                                 const std::string& path, const HfExportOptions& options) {
  std::vector<SafetensorsPart> parts;
  std::vector<StreamedBox> boxes;
  for (const TensorInfo& tensor : tensors) {
    parts.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    boxes.push_back({tensor, Box::Whole(tensor.shape)});
  }
  KEEL_ASSIGN_OR_RETURN(const std::string header,
                        BuildSafetensorsHeader(parts, {{"format", "pt"}}, kHeaderAlignment));
  BoxStreamOptions stream;
  stream.buffer_bytes = options.buffer_bytes;
  stream.threads = options.threads;
  return StreamBoxes(reader, scope, boxes, header, out, path, reader.index().chunk_bytes(), stream);
}

}  // namespace

std::vector<std::string> HfExportOptions::Validate() const {
  std::vector<std::string> problems;
  if (max_shard_bytes <= 0) problems.emplace_back("max_shard_bytes must be positive");
  if (buffer_bytes <= 0) problems.emplace_back("buffer_bytes must be positive");
  if (threads < 1) problems.emplace_back("threads must be at least 1");
  return problems;
}

Result<std::vector<ExportedFile>> ExportWeights(const StepReader& reader, std::string_view scope,
                                                std::string_view config, FileSystem& out,
                                                const std::string& directory,
                                                const HfExportOptions& options) {
  KEEL_ASSIGN_OR_RETURN(const ShardTable tensors, reader.Tensors(scope));
  const bool tied = TiesEmbeddings(config);
  // 1. Which tensors go into which file.
  std::vector<std::vector<TensorInfo>> shards(1);
  int64_t in_shard = 0;
  int64_t total = 0;
  for (const TensorInfo& tensor : tensors.tensors()) {
    if (tied && tensor.name == kTiedHead) continue;
    const int64_t bytes = tensor.shape.elements() * DTypeSize(tensor.dtype);
    if (in_shard > 0 && in_shard + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  if (shards.front().empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("the checkpoint holds no weights of '{}'", scope));
  }

  // 2. The files.
  std::vector<ExportedFile> files;
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string("model.safetensors")
                                                : fmt::format("model-{:05d}-of-{:05d}.safetensors",
                                                              i + 1, shards.size());
    KEEL_ASSIGN_OR_RETURN(
        ChunkedDigest digest,
        WriteShard(reader, scope, shards[i], out, fmt::format("{}/{}", directory, name), options));
    for (const TensorInfo& tensor : shards[i]) map[tensor.name] = name;
    files.push_back({name, std::move(digest)});
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    const std::string text = index.dump(2) + "\n";
    KEEL_RETURN_IF_ERROR(WriteFileDurably(out, fmt::format("{}/{}", directory, kIndexFile), text));
    files.push_back({std::string(kIndexFile), DigestOfText(text, reader.index().chunk_bytes())});
  }
  KEEL_RETURN_IF_ERROR(out.SyncDirectory(directory));
  return files;
}

Status ExportHuggingFace(const StepReader& reader, const std::string& role, FileSystem& out,
                         const std::string& name, const HfExportOptions& options, Logger& log) {
  CollectPartials(out, name, log);
  if (out.Stat(name).ok()) {
    return Status(StatusCode::kAlreadyExists,
                  fmt::format("{}: exists; an export does not overwrite", out.Describe(name)));
  }
  const std::string prefix = role + "/huggingface/";
  const std::string config_path = prefix + "config.json";
  std::string config;
  if (reader.manifest().Find(config_path) != nullptr) {
    KEEL_ASSIGN_OR_RETURN(config, reader.ReadText(config_path, StepReader::kMaxText));
  } else {
    log.Warning("the checkpoint holds no {}: the export will lack it", config_path);
  }

  std::random_device entropy;
  const std::string id = MakeSaveId((uint64_t{entropy()} << 32) | entropy());
  const std::string lock = ScratchOf(name, id, kLockEnd);
  const std::string temporary = ScratchOf(name, id, kPartialEnd);
  Lease held;
  const auto build = [&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(held, TakeLock(out, lock));
    KEEL_RETURN_IF_ERROR(out.MakeDirectory(temporary));
    KEEL_FAIL_POINT("export.begin");
    // Tokenizer and configuration: the small files beside the weights.
    for (const ManifestFile& file : reader.manifest().files) {
      if (file.role != FileRole::kDocument || !file.path.starts_with(prefix)) continue;
      const std::string plain = file.path.substr(prefix.size());
      if (plain.find('/') != std::string::npos) continue;
      KEEL_ASSIGN_OR_RETURN(const std::string text,
                            reader.ReadText(file.path, StepReader::kMaxText));
      KEEL_RETURN_IF_ERROR(WriteFileDurably(out, fmt::format("{}/{}", temporary, plain), text));
    }
    KEEL_RETURN_IF_ERROR(
        ExportWeights(reader, role + "/model", config, out, temporary, options).status());
    KEEL_RETURN_IF_ERROR(out.SyncDirectory(temporary));
    KEEL_FAIL_POINT("export.synced");
    KEEL_RETURN_IF_ERROR(out.Rename(temporary, name, FileSystem::RenameMode::kNoReplace));
    const Status durable = Guarded([&]() -> Status {
      KEEL_FAIL_POINT("export.renamed");
      return out.SyncDirectory(".");
    });
    if (!durable.ok()) (void)out.Rename(name, temporary, FileSystem::RenameMode::kNoReplace);
    return durable;
  };
  const Status status = Guarded(build);
  if (!status.ok()) (void)RemoveTree(out, temporary);
  (void)out.Remove(lock);
  return status;
}

}  // namespace keel::checkpoint
