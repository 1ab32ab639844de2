#include "checkpoint/step_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/hf_export.h"
#include "checkpoint/index.h"
#include "checkpoint/names.h"
#include "checkpoint/step_reader.h"
#include "common/fail_point.h"

namespace keel::checkpoint {

std::vector<std::string> DirectoriesOf(const SaveRequest& request, const SavePlan& plan) {
  std::set<std::string> directories;
  const auto add_parents = [&](std::string_view path) {
    for (size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/', slash + 1)) {
      directories.emplace(path.substr(0, slash));
    }
  };
  for (const PlannedFile& file : plan.files) add_parents(file.path);
  for (const Document& document : request.documents) add_parents(document.path);
  if (request.contents.hf_model) {
    for (const std::string& role : plan.roles) add_parents(role + "/huggingface/x");
  }
  return {directories.begin(), directories.end()};
}

Status CheckDocuments(const SaveRequest& request, const SavePlan& plan) {
  std::set<std::string> paths = {std::string(kManifestName), std::string(kIndexName)};
  for (const PlannedFile& file : plan.files) paths.insert(file.path);
  for (const Document& document : request.documents) {
    KEEL_RETURN_IF_ERROR(CheckRelativePath(document.path, "a document of the checkpoint"));
    if (!paths.insert(document.path).second) {
      return Status(StatusCode::kInternal,
                    fmt::format("the checkpoint has another file '{}'", document.path));
    }
  }
  return Status::Ok();
}

namespace {

// The whole model of each role, made from the sharded weights that this save has written, tensor by
// tensor.
Status ExportWholeModels(FileSystem& fs, const CheckpointOptions& options,
                         const SaveRequest& request, const SavePlan& plan, const SaveOrder& order,
                         const std::map<std::string, ChunkedDigest>& written, Manifest* manifest,
                         IndexBuilder* index) {
  IndexBuilder parts(options.chunk_bytes);
  for (const PlannedFile& file : plan.files) {
    if (file.kind != FileRole::kModel) continue;
    parts.AddFile(file.path, written.at(file.path));
    for (const PlannedShard& shard : file.shards)
      parts.AddBox(file.scope, shard.tensor, shard.box, file.path, shard.begin);
  }
  KEEL_ASSIGN_OR_RETURN(std::string bytes, parts.Build());
  KEEL_ASSIGN_OR_RETURN(Index parsed, Index::Parse(std::move(bytes), "index of the weights"));
  const StepReader reader = StepReader::FromIndex(fs, order.temporary, std::move(parsed));
  for (const std::string& role : plan.roles) {
    std::string config;
    for (const Document& document : request.documents) {
      if (document.path == role + "/huggingface/config.json") config = document.content;
    }
    KEEL_ASSIGN_OR_RETURN(
        std::vector<ExportedFile> exported,
        ExportWeights(reader, role + "/model", config, fs,
                      fmt::format("{}/{}/huggingface", order.temporary, role), HfExportOptions{}));
    for (ExportedFile& file : exported) {
      const std::string path = fmt::format("{}/huggingface/{}", role, file.name);
      if (order.read_back) {
        KEEL_RETURN_IF_ERROR(ReadBack(fs, fmt::format("{}/{}", order.temporary, path), file.digest,
                                      options.chunk_bytes));
      }
      manifest->files.push_back({path, FileRole::kHfModel, file.digest.size, file.digest.whole});
      index->AddFile(path, std::move(file.digest));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<Manifest> PublishStep(FileSystem& fs, Committer& committer, const Clock& clock,
                             const std::function<Status()>& guard, const CheckpointOptions& options,
                             const SaveRequest& request, const SavePlan& plan,
                             const SaveOrder& order, int64_t sequence,
                             std::vector<SaveReport> reports) {
  // 1. All ranks' files, as they reported them after their fsync.
  std::map<std::string, ChunkedDigest> written;
  for (SaveReport& report : reports) {
    for (auto& [path, digest] : report.files) written.emplace(path, std::move(digest));
  }
  Manifest manifest;
  std::vector<std::string> temporary_parts;  // sharded weights that only serve to make hf_model
  IndexBuilder index(options.chunk_bytes);
  for (const PlannedFile& file : plan.files) {
    const auto found = written.find(file.path);
    if (found == written.end() || found->second.size != file.size) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} did not report '{}' with its {} bytes", file.rank,
                                file.path, file.size));
    }
    if (file.kind == FileRole::kModel && !request.contents.model) {
      temporary_parts.push_back(file.path);
      continue;
    }
    manifest.files.push_back({file.path, file.kind, found->second.size, found->second.whole});
    index.AddFile(file.path, found->second);
    for (const PlannedShard& shard : file.shards)
      index.AddBox(file.scope, shard.tensor, shard.box, file.path, shard.begin);
  }

  KEEL_FAIL_POINT("publish.documents");
  // 2. Documents, and the whole model for those who asked for it.
  for (const Document& document : request.documents) {
    if (document.extra && !request.contents.extra) continue;
    const std::string path = fmt::format("{}/{}", order.temporary, document.path);
    KEEL_RETURN_IF_ERROR(WriteFileDurably(fs, path, document.content));
    ChunkedDigest digest = DigestOfText(document.content, options.chunk_bytes);
    if (order.read_back) KEEL_RETURN_IF_ERROR(ReadBack(fs, path, digest, options.chunk_bytes));
    manifest.files.push_back({document.path,
                              document.extra ? FileRole::kExtra : FileRole::kDocument, digest.size,
                              digest.whole});
    index.AddFile(document.path, std::move(digest));
  }
  if (request.contents.hf_model) {
    KEEL_FAIL_POINT("publish.hf_model");
    KEEL_RETURN_IF_ERROR(
        ExportWholeModels(fs, options, request, plan, order, written, &manifest, &index));
    for (const std::string& path : temporary_parts) {
      KEEL_RETURN_IF_ERROR(fs.Remove(fmt::format("{}/{}", order.temporary, path)));
    }
  }

  // 3. The index, then the manifest and the rename.
  KEEL_FAIL_POINT("publish.index");
  KEEL_ASSIGN_OR_RETURN(const std::string index_bytes, index.Build());
  const std::string index_path = fmt::format("{}/{}", order.temporary, kIndexName);
  KEEL_RETURN_IF_ERROR(WriteFileDurably(fs, index_path, index_bytes));
  const ChunkedDigest index_digest = DigestOfText(index_bytes, options.chunk_bytes);
  if (order.read_back)
    KEEL_RETURN_IF_ERROR(ReadBack(fs, index_path, index_digest, options.chunk_bytes));
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  manifest.run_id = options.run_id;
  manifest.save_id = order.save_id;
  manifest.step = request.step;
  manifest.created = FormatUtc(clock.Wall());
  manifest.config_digest = request.config_digest;
  manifest.layout = request.layout;
  manifest.roles = plan.roles;
  manifest.contents = request.contents;
  manifest.metric = request.metric;
  manifest.chunk_bytes = options.chunk_bytes;
  manifest.index_size = index_digest.size;
  manifest.index_digest = index_digest.whole;
  manifest.sequence = sequence;
  KEEL_RETURN_IF_ERROR(guard());  // once more: a whole model takes its time
  KEEL_RETURN_IF_ERROR(committer.Publish(order.temporary, manifest, DirectoriesOf(request, plan)));
  return manifest;
}

}  // namespace keel::checkpoint
