#include "checkpoint/hf/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/fused_tensors.h"

namespace keel::checkpoint {
namespace {

// The first `bytes` of a file, verified by whole chunks.
Status ReadVerified(const StepReader& reader, const File& file, int id, int64_t bytes,
                    std::vector<std::byte>* head) {
  StepReader::Scratch scratch;
  while (static_cast<int64_t>(head->size()) < bytes) {
    const ChunkId chunk{id, static_cast<int64_t>(head->size()) / reader.index().chunk_bytes()};
    const size_t at = head->size();
    head->resize(at + static_cast<size_t>(reader.RangeOf(chunk).second));
    std::byte* const to = head->data() + at;
    KEEL_RETURN_IF_ERROR(reader.ReadChunk(
        file, chunk, &scratch, [to](int64_t begin) { return to + begin; }, nullptr));
  }
  return Status::Ok();
}

Result<SafetensorsHeader> ReadHeader(const StepReader& reader, int id, const std::string& where) {
  constexpr int64_t kPrefix = 8;
  const int64_t size = reader.index().file(id).size;
  if (size < kPrefix) {
    return Status(StatusCode::kInvalidData, where + ": is too short for a safetensors file");
  }
  StepReader::OpenFiles files(reader);
  KEEL_ASSIGN_OR_RETURN(const auto file, files.Get(id));
  std::vector<std::byte> head;
  KEEL_RETURN_IF_ERROR(ReadVerified(reader, *file, id, kPrefix, &head));
  uint64_t length = 0;
  std::memcpy(&length, head.data(), sizeof(length));
  if (length > static_cast<uint64_t>(std::min(kMaxSafetensorsHeader, size - kPrefix))) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: says that its header has {} bytes", where, length));
  }
  KEEL_RETURN_IF_ERROR(
      ReadVerified(reader, *file, id, kPrefix + static_cast<int64_t>(length), &head));
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  return ParseSafetensorsHeader(text.substr(kPrefix, length), size, where);
}

}  // namespace

Result<std::string> ConfigTextOf(const StepReader& reader, const std::string& role) {
  for (const std::string_view of : {std::string_view(role), std::string_view("actor")}) {
    const std::string path = fmt::format("{}/huggingface/config.json", of);
    if (reader.manifest().Find(path) != nullptr) return reader.ReadText(path);
  }
  return std::string();
}

Result<Index> IndexOfHfWeights(const StepReader& reader, std::span<const std::string> roles) {
  const Index& index = reader.index();
  IndexBuilder builder(index.chunk_bytes());
  std::set<std::string> replaced;
  for (const std::string& role : roles) replaced.insert(role + "/model");
  for (int f = 0; f < index.files(); ++f) {
    const IndexFile file = index.file(f);
    const std::string path(file.path);
    ChunkedDigest digest;
    digest.size = file.size;
    digest.chunks = index.chunks(file);
    builder.AddFile(path, std::move(digest));
    const ManifestFile* listed = reader.manifest().Find(path);
    if (listed == nullptr || listed->role != FileRole::kHfModel || !path.ends_with(".safetensors"))
      continue;
    const auto role = std::find_if(roles.begin(), roles.end(), [&](const std::string& name) {
      return path.starts_with(name + "/huggingface/");
    });
    if (role == roles.end()) continue;
    KEEL_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                          ReadHeader(reader, f, reader.PathOf(path)));
    KEEL_ASSIGN_OR_RETURN(const std::string config, ConfigTextOf(reader, *role));
    KEEL_ASSIGN_OR_RETURN(
        const FusedTensors fused,
        FusedTensors::Of(config, reader.PathOf(*role + "/huggingface/config.json")));
    for (const SafetensorsTensor& tensor : header.tensors) {
      KEEL_ASSIGN_OR_RETURN(const std::vector<SafetensorsTensor> parts,
                            fused.Split(tensor, reader.PathOf(path)));
      for (const SafetensorsTensor& part : parts) {
        builder.AddBox(*role + "/model", {part.name, part.dtype, part.shape},
                       Box::Whole(part.shape), path, part.begin);
      }
    }
  }
  // Everything else stays where it is.
  for (int scope = 0; scope < index.scopes(); ++scope) {
    if (replaced.contains(std::string(index.scope_name(scope)))) continue;
    const auto [first, count] = index.tensor_range(scope);
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index.tensor(t);
      const TensorInfo info = tensor.Info();
      for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
        const IndexBox box = index.box(b);
        builder.AddBox(index.scope_name(scope), info, box.box, index.file(box.file).path,
                       box.begin);
      }
    }
  }
  const std::string where = reader.PathOf("index of the Hugging Face weights");
  Result<std::string> bytes = builder.Build();
  if (!bytes.ok()) return Status(StatusCode::kInvalidData, bytes.status().message());
  return Index::Parse(std::move(bytes).value(), where);
}

}  // namespace keel::checkpoint
