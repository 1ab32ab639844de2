// The files of a checkpoint: safetensors headers, manifest.json, index.bin.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "tests/fuzz/targets.h"

namespace keel::fuzz {
namespace {

using namespace keel::checkpoint;  // NOLINT: what is fuzzed

// A file of these bytes.
class TextFile : public File {
 public:
  explicit TextFile(std::string_view text) : text_(text) {}
  Status WriteAt(int64_t, std::span<const std::byte>) override { return Closed(); }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    KEEL_REQUIRE(offset >= 0);
    const int64_t end = std::ssize(text_);
    const int64_t count = std::clamp<int64_t>(end - offset, 0, std::ssize(data));
    if (count > 0) std::copy_n(text_.data() + offset, count, reinterpret_cast<char*>(data.data()));
    return count;
  }
  Status Truncate(int64_t) override { return Closed(); }
  Status Sync() override { return Closed(); }
  Status Close() override { return Closed(); }
  Result<int64_t> Size() const override { return std::ssize(text_); }

 private:
  static Status Closed() { return Status(StatusCode::kIo, "read only"); }
  std::string_view text_;
};

ChunkedDigest DigestFor(int64_t size, int64_t chunk_bytes) {
  return DigestOfText(std::string(static_cast<size_t>(size), 'x'), chunk_bytes);
}

}  // namespace

void FuzzSafetensors(std::string_view bytes) {
  const Result<SafetensorsHeader> header = ReadSafetensorsHeader(TextFile(bytes), "fuzz");
  if (!header.ok()) {
    RequireNames(header.status());
    return;
  }
  // The tensors fill the buffer, one after the other, without holes, up to the end of the file.
  int64_t at = header->data_start;
  std::set<std::string_view> names;
  for (const SafetensorsTensor& tensor : header->tensors) {
    KEEL_REQUIRE(tensor.begin == at);
    KEEL_REQUIRE(tensor.end >= tensor.begin);
    KEEL_REQUIRE(tensor.bytes() == tensor.shape.elements() * DTypeSize(tensor.dtype));
    KEEL_REQUIRE(names.insert(tensor.name).second);
    at = tensor.end;
  }
  KEEL_REQUIRE(at == std::ssize(bytes));
}

std::vector<std::string> SafetensorsSeeds() {
  std::vector<std::string> seeds;
  const std::vector<SafetensorsPart> parts = {{"w", DType::kBF16, Dims{2, 3}, Dims{4, 0}},
                                              {"empty", DType::kF32, Dims{0, 5}, Dims{0, 0}},
                                              {"scalar", DType::kI64, Dims{}, Dims{}}};
  for (std::string header : {ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)),
                             ValueOrThrow(BuildSafetensorsHeader({}, {}, 8)),
                             ValueOrThrow(BuildShardedSafetensorsHeader(parts))}) {
    if (header.find("scalar") != std::string::npos) header += std::string(2 * 3 * 2 + 8, 'x');
    seeds.push_back(std::move(header));
  }
  return seeds;
}

// The bytes are a manifest without the digest that ends it: that one is made right, or no fuzzer
// would ever come further.
void FuzzManifest(std::string_view bytes) {
  (void)Manifest::Parse(bytes, "fuzz");
  const std::string text = fmt::format("{}  \"digest\": \"{}\"\n}}\n", bytes,
                                       Hash128(std::as_bytes(std::span(bytes))).ToHex());
  const Result<Manifest> manifest = Manifest::Parse(text, "fuzz");
  if (!manifest.ok()) {
    RequireNames(manifest.status());
    return;
  }
  // What is understood is written back the same.
  const std::string again = manifest->Serialize();
  const Result<Manifest> reread = Manifest::Parse(again, "again");
  KEEL_REQUIRE(reread.ok());
  KEEL_REQUIRE(reread->Serialize() == again);
  KEEL_REQUIRE(reread->step == manifest->step && reread->sequence == manifest->sequence);
  KEEL_REQUIRE(manifest->step >= 0);
  KEEL_REQUIRE(manifest->TotalBytes() >= 0);
  for (const ManifestFile& file : manifest->files) {
    KEEL_REQUIRE(file.size >= 0);
    KEEL_REQUIRE(!file.path.starts_with("/") && file.path.find("..") != 0);
    KEEL_REQUIRE(manifest->Find(file.path) != nullptr);
  }
}

std::vector<std::string> ManifestSeeds() {
  Manifest manifest;
  manifest.run_id = "run";
  manifest.save_id = "0123456789abcdef01234567";
  manifest.sequence = 3;
  manifest.step = 40;
  manifest.created = "2026-11-21T07:00:00Z";
  manifest.config_digest = "d";
  manifest.layout = {{"tp", 2}, {"dp", 1}};
  manifest.roles = {"actor"};
  manifest.chunk_bytes = 4096;
  manifest.index_size = 72;
  std::vector<std::string> seeds;
  for (const int files : {0, 2}) {
    if (files > 0) manifest.metric = 0.25;
    for (int i = 0; i < files; ++i)
      manifest.files.push_back({fmt::format("actor/model/rank_{:05d}.safetensors", i),
                                FileRole::kModel, 4096 + i, Digest128{1, 2}});
    const std::string text = manifest.Serialize();
    seeds.push_back(text.substr(0, text.rfind("  \"digest\"")));
  }
  return seeds;
}

void FuzzIndex(std::string_view bytes) {
  const Result<Index> index = Index::Parse(std::string(bytes), "fuzz");
  if (!index.ok()) {
    RequireNames(index.status());
    return;
  }
  // Whatever it holds can be asked for.
  KEEL_REQUIRE(index->chunk_bytes() > 0);
  for (int f = 0; f < index->files(); ++f) {
    const IndexFile file = index->file(f);
    KEEL_REQUIRE(file.size >= 0);
    KEEL_REQUIRE(file.chunk_count == ChunkCount(file.size, index->chunk_bytes()));
    (void)DigestOfChunks(file.size, index->chunks(file));
    (void)index->TensorsIn(f, 0, file.size);
  }
  for (int s = 0; s < index->scopes(); ++s) {
    KEEL_REQUIRE(index->FindScope(index->scope_name(s)) == s);
    const auto [first, count] = index->tensor_range(s);
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index->tensor(t);
      KEEL_REQUIRE(tensor.scope == s);
      KEEL_REQUIRE(index->FindTensor(s, tensor.name) == t);
      for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
        const IndexBox box = index->box(b);
        KEEL_REQUIRE(box.file >= 0 && box.file < index->files());
        KEEL_REQUIRE(box.begin >= 0 && box.bytes >= 0);
        KEEL_REQUIRE(box.begin <= index->file(box.file).size - box.bytes);
        KEEL_REQUIRE(box.bytes == box.box.elements() * DTypeSize(tensor.dtype));
        KEEL_REQUIRE(Box::Whole(tensor.shape).Contains(box.box));
      }
    }
  }
}

std::vector<std::string> IndexSeeds() {
  IndexBuilder builder(4096);
  builder.AddFile("actor/model/rank_00000.safetensors", DigestFor(4096 + 24, 4096));
  builder.AddFile("actor/optimizer/rank_00000.safetensors", DigestFor(4096 + 48, 4096));
  builder.AddFile("trainer_state.json", DigestFor(3, 4096));
  const TensorInfo w{"w", DType::kBF16, Dims{4, 3}};
  const TensorInfo master{"optimizer.master.w", DType::kF32, Dims{4, 3}};
  builder.AddBox("actor/model", w, Box::Whole(w.shape), "actor/model/rank_00000.safetensors", 4096);
  builder.AddBox("actor/optimizer", master, {Dims{0, 0}, Dims{2, 3}},
                 "actor/optimizer/rank_00000.safetensors", 4096);
  builder.AddBox("actor/optimizer", master, {Dims{2, 0}, Dims{2, 3}},
                 "actor/optimizer/rank_00000.safetensors", 4120);
  return {ValueOrThrow(builder.Build()), ValueOrThrow(IndexBuilder(4096).Build())};
}

}  // namespace keel::fuzz
