#include "checkpoint/save/step_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/format/index.h"
#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_export.h"
#include "checkpoint/read/step_reader.h"
#include "common/fail_point.h"

namespace keel::checkpoint {

std::vector<std::string> DirectoriesOf(const SaveRequest& request, const SavePlan& plan) {
  std::vector<std::string> paths;
  for (const PlannedFile& file : plan.files) paths.push_back(file.path);
  for (const Document& document : request.documents) paths.push_back(document.path);
  if (request.contents.hf_model) {
    for (const std::string& role : plan.roles) paths.push_back(role + "/huggingface/x");
  }
  return DirectoriesOf(paths);
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

// Where all boxes of these files lie. There may be millions of them.
void AddBoxes(const SavePlan& plan, std::span<const PlannedFile* const> files,
              IndexBuilder* index) {
  std::vector<size_t> boxes(plan.tensors.size(), 0);
  for (const PlannedFile* file : files) {
    for (const PlannedShard& shard : file->shards) ++boxes[static_cast<size_t>(shard.tensor)];
  }
  std::vector<int> numbers(plan.tensors.size());
  for (size_t t = 0; t < numbers.size(); ++t) {
    const PlannedTensor& tensor = plan.tensors[t];
    if (boxes[t] > 0) numbers[t] = index->AddTensor(tensor.scope, tensor.info, boxes[t]);
  }
  for (const PlannedFile* file : files) {
    for (const PlannedShard& shard : file->shards)
      index->AddBox(numbers[static_cast<size_t>(shard.tensor)], shard.box, file->path, shard.begin);
  }
}

}  // namespace

struct StepPublisher::Assembly {
  StepParts parts;
  std::map<std::string, ChunkedDigest> written;  // by path: the ranks' files
  Manifest manifest;
  IndexBuilder index;
  std::vector<std::string> only_for_whole_models;  // sharded weights that are not asked for
  std::string Path(std::string_view path) const {
    return fmt::format("{}/{}", parts.order.temporary, path);
  }
};

Result<Manifest> StepPublisher::Publish(StepParts parts) {
  Assembly step{std::move(parts), {}, {}, IndexBuilder(options_.chunk_bytes), {}};
  KEEL_RETURN_IF_ERROR(AddTensorFiles(&step));
  KEEL_FAIL_POINT("publish.documents");
  KEEL_RETURN_IF_ERROR(AddDocuments(&step));
  const SaveRequest& request = step.parts.request;
  const SavePlan& plan = step.parts.plan;
  if (request.contents.hf_model) {
    KEEL_FAIL_POINT("publish.hf_model");
    KEEL_RETURN_IF_ERROR(AddWholeModels(&step));
  }
  KEEL_FAIL_POINT("publish.index");
  KEEL_RETURN_IF_ERROR(AddIndex(&step));

  Manifest& manifest = step.manifest;
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  manifest.run_id = options_.run_id;
  manifest.save_id = step.parts.order.save_id;
  manifest.step = request.step;
  manifest.created = FormatUtc(clock_.Wall());
  manifest.config_digest = request.config_digest;
  manifest.layout = request.layout;
  manifest.roles = plan.roles;
  manifest.contents = request.contents;
  manifest.metric = request.metric;
  manifest.chunk_bytes = options_.chunk_bytes;
  manifest.sequence = step.parts.sequence;
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> directories, DropEmptyDirectories(step));
  KEEL_RETURN_IF_ERROR(guard_());  // once more: a whole model takes its time
  KEEL_RETURN_IF_ERROR(committer_.Publish(step.parts.order.temporary, manifest, directories));
  return std::move(manifest);
}

// All ranks' files, as they reported them after their fsync.
Status StepPublisher::AddTensorFiles(Assembly* step) {
  for (SaveReport& report : step->parts.reports) {
    for (auto& [path, digest] : report.files) step->written.emplace(path, std::move(digest));
  }
  std::vector<const PlannedFile*> indexed;
  for (const PlannedFile& file : step->parts.plan.files) {
    const auto found = step->written.find(file.path);
    if (found == step->written.end() || found->second.size != file.size) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} did not report '{}' with its {} bytes", file.rank,
                                file.path, file.size));
    }
    if (file.kind == FileRole::kModel && !step->parts.request.contents.model) {
      step->only_for_whole_models.push_back(file.path);
      continue;
    }
    step->manifest.files.push_back({file.path, file.kind, found->second.size, found->second.whole});
    step->index.AddFile(file.path, found->second);
    indexed.push_back(&file);
  }
  AddBoxes(step->parts.plan, indexed, &step->index);
  return Status::Ok();
}

Status StepPublisher::AddDocuments(Assembly* step) {
  const SaveRequest& request = step->parts.request;
  uint64_t weights = 0;
  for (const SaveReport& report : step->parts.reports) weights += report.weights_digest;
  for (const Document& document : request.documents) {
    if (document.extra && !request.contents.extra) continue;
    const std::string content = document.of_digest ? document.of_digest(weights) : document.content;
    KEEL_RETURN_IF_ERROR(WriteFileDurably(fs_, step->Path(document.path), content));
    ChunkedDigest digest = DigestOfText(content, options_.chunk_bytes);
    KEEL_RETURN_IF_ERROR(MakeSureOf(*step, document.path, digest));
    step->manifest.files.push_back({document.path,
                                    document.extra ? FileRole::kExtra : FileRole::kDocument,
                                    digest.size, digest.whole});
    step->index.AddFile(document.path, std::move(digest));
  }
  return Status::Ok();
}

// The whole model of each role, made from the sharded weights that this save has written, tensor by
// tensor.
Status StepPublisher::AddWholeModels(Assembly* step) {
  const SavePlan& plan = step->parts.plan;
  const std::string& temporary = step->parts.order.temporary;
  IndexBuilder weights(options_.chunk_bytes);
  std::vector<const PlannedFile*> sharded;
  for (const PlannedFile& file : plan.files) {
    if (file.kind != FileRole::kModel) continue;
    weights.AddFile(file.path, step->written.at(file.path));
    sharded.push_back(&file);
  }
  AddBoxes(plan, sharded, &weights);
  KEEL_ASSIGN_OR_RETURN(std::string bytes, weights.Build());
  KEEL_ASSIGN_OR_RETURN(Index parsed, Index::Parse(std::move(bytes), "index of the weights"));
  const StepReader reader = StepReader::FromIndex(fs_, temporary, std::move(parsed));
  for (const std::string& role : plan.roles) {
    const std::string folder = role + "/huggingface";
    std::string config;
    for (const Document& document : step->parts.request.documents) {
      if (document.path == folder + "/config.json") config = document.content;
    }
    KEEL_ASSIGN_OR_RETURN(
        std::vector<ExportedFile> exported,
        ExportWeights(reader, role + "/model", config, fs_, step->Path(folder), HfExportOptions{}));
    for (ExportedFile& file : exported) {
      const std::string path = fmt::format("{}/{}", folder, file.name);
      KEEL_RETURN_IF_ERROR(MakeSureOf(*step, path, file.digest));
      step->manifest.files.push_back(
          {path, FileRole::kHfModel, file.digest.size, file.digest.whole});
      step->index.AddFile(path, std::move(file.digest));
    }
  }
  for (const std::string& path : step->only_for_whole_models)
    KEEL_RETURN_IF_ERROR(fs_.Remove(step->Path(path)));
  return Status::Ok();
}

Status StepPublisher::AddIndex(Assembly* step) {
  KEEL_ASSIGN_OR_RETURN(const std::string bytes, step->index.Build());
  const std::string name(kIndexName);
  KEEL_RETURN_IF_ERROR(WriteFileDurably(fs_, step->Path(name), bytes));
  const ChunkedDigest digest = DigestOfText(bytes, options_.chunk_bytes);
  KEEL_RETURN_IF_ERROR(MakeSureOf(*step, name, digest));
  step->manifest.index_size = digest.size;
  step->manifest.index_digest = digest.whole;
  return Status::Ok();
}

// Returns those that hold something.
Result<std::vector<std::string>> StepPublisher::DropEmptyDirectories(const Assembly& step) {
  std::vector<std::string> paths;
  for (const ManifestFile& file : step.manifest.files) paths.push_back(file.path);
  std::vector<std::string> used = DirectoriesOf(paths);
  std::vector<std::string> made = DirectoriesOf(step.parts.request, step.parts.plan);
  std::reverse(made.begin(), made.end());  // children before parents
  for (const std::string& directory : made) {
    if (!std::binary_search(used.begin(), used.end(), directory))
      KEEL_RETURN_IF_ERROR(fs_.Remove(step.Path(directory)));
  }
  return used;
}

Status StepPublisher::MakeSureOf(const Assembly& step, const std::string& path,
                                 const ChunkedDigest& digest) {
  if (!step.parts.order.read_back) return Status::Ok();
  return ReadBack(fs_, step.Path(path), digest, options_.chunk_bytes);
}

}  // namespace keel::checkpoint
