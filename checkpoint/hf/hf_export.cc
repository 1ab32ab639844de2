#include "checkpoint/hf/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/fused_tensors.h"
#include "checkpoint/read/box_stream.h"
#include "common/json_builder.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kTiedHead = "lm_head.weight";
constexpr int64_t kHeaderAlignment = 8;  // as the format's own library does

bool TiesEmbeddings(std::string_view config) {
  if (config.empty()) return false;
  const Result<Json> root = ParsePythonJson(config, "config.json");
  return root.ok() && root->is_object() && root->value("tie_word_embeddings", false);
}

// Writes whole tensors of a scope to one plain file.
Result<ChunkedDigest> WriteShard(const StepReader& reader, std::string_view scope,
                                 const std::vector<FusedTensors::Joined>& tensors, FileSystem& out,
                                 const std::string& path, const HfExportOptions& options) {
  std::vector<SafetensorsPart> parts;
  std::vector<StreamedBox> boxes;
  for (const auto& [tensor, canonical] : tensors) {
    parts.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    for (const TensorInfo& each : canonical) boxes.push_back({each, Box::Whole(each.shape)});
  }
  KEEL_ASSIGN_OR_RETURN(const std::string header,
                        BuildSafetensorsHeader(parts, {{"format", "pt"}}, kHeaderAlignment));
  BoxStreamOptions stream;
  stream.buffer_bytes = options.buffer_bytes;
  stream.threads = options.threads;
  return StreamBoxes(reader, scope, boxes, header, out, path, reader.index().chunk_bytes(), stream);
}

// Under PEFT's names.
Result<std::vector<FusedTensors::Joined>> AsAdapters(const std::vector<TensorInfo>& tensors,
                                                     const FusedTensors& fused) {
  std::vector<FusedTensors::Joined> named;
  for (const TensorInfo& tensor : tensors) {
    const std::string weight = tensor.name.substr(0, tensor.name.find(".lora_")) + ".weight";
    if (const std::string whole = fused.FusedNameOf(weight); !whole.empty()) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{} stands beside rows of {} alone, for which PEFT has no adapter: "
                                "keel ckpt merge-adapter makes a whole model of the step",
                                tensor.name, whole));
    }
    TensorInfo with_prefix = tensor;
    with_prefix.name = fmt::format("{}{}", kAdapterPrefix, fused.names().FileName(tensor.name));
    named.push_back({std::move(with_prefix), {tensor}});
  }
  return named;
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
  KEEL_ASSIGN_OR_RETURN(const FusedTensors fused, FusedTensors::Of(config, "config.json"));
  KEEL_ASSIGN_OR_RETURN(
      const std::vector<FusedTensors::Joined> whole,
      options.adapters ? AsAdapters(tensors.tensors(), fused) : fused.Join(tensors.tensors()));
  const bool tied = TiesEmbeddings(config);
  // 1. Which tensors go into which file.
  std::vector<std::vector<FusedTensors::Joined>> shards(1);
  int64_t in_shard = 0;
  int64_t total = 0;
  for (const FusedTensors::Joined& joined : whole) {
    const TensorInfo& tensor = joined.tensor;
    if (tied && tensor.name == kTiedHead) continue;
    const int64_t bytes = tensor.shape.elements() * DTypeSize(tensor.dtype);
    if (!options.adapters && in_shard > 0 && in_shard + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(joined);
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
    const std::string name =
        options.adapters ? std::string(kAdapterWeightsName)
        : shards.size() == 1
            ? std::string("model.safetensors")
            : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards.size());
    KEEL_ASSIGN_OR_RETURN(
        ChunkedDigest digest,
        WriteShard(reader, scope, shards[i], out, fmt::format("{}/{}", directory, name), options));
    for (const FusedTensors::Joined& joined : shards[i]) map[joined.tensor.name] = name;
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

}  // namespace keel::checkpoint
