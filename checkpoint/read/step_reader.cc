#include "checkpoint/read/step_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/names.h"
#include "common/clock.h"
#include "common/parallel_for.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

Status Damaged(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }

// What cannot be read is as good as damaged, unless the reason lies in this process; the cause
// tells those apart who look for damage.
Status Unread(const Status& status, std::string message) {
  if (status.code() == StatusCode::kExhausted || status.code() == StatusCode::kCancelled)
    return Status(status.code(), status.cause(), std::move(message));
  return Status(StatusCode::kDataLoss, status.cause(), std::move(message));
}

constexpr size_t kMostOpenFiles = 32;
constexpr std::chrono::milliseconds kOpenAgain{250};

// Chunks that are announced to the disk ahead of being read: a single reader without them gets a
// third of a disk's rate.
constexpr int64_t kPrefetchChunks = 4;

}  // namespace

Result<StepReader> StepReader::Open(const FileSystem& fs, std::string directory) {
  KEEL_ASSIGN_OR_RETURN(StepReader reader, OpenIndex(fs, std::move(directory)));
  for (const ManifestFile& file : reader.manifest_.files) {
    KEEL_RETURN_IF_ERROR(reader.CheckFile(file));
  }
  return reader;
}

Result<StepReader> StepReader::OpenIndex(const FileSystem& fs, std::string directory) {
  StepReader reader(fs, std::move(directory));
  KEEL_ASSIGN_OR_RETURN(reader.lease_, LeaseForReading(fs, reader.directory_));
  Texts texts;
  KEEL_ASSIGN_OR_RETURN(texts.manifest, ReadManifestText(fs, reader.directory_));
  KEEL_ASSIGN_OR_RETURN(reader.manifest_, ParseManifest(fs, reader.directory_, texts.manifest));
  const std::string path = reader.PathOf(kIndexName);
  Result<std::string> bytes = ReadFile(fs, path, reader.manifest_.index_size + 1);
  if (!bytes.ok()) {
    return Unread(bytes.status(), fmt::format("{}: the index cannot be read: {}", fs.Describe(path),
                                              bytes.status().message()));
  }
  texts.index = std::move(bytes).value();
  KEEL_RETURN_IF_ERROR(reader.Adopt(std::move(texts)));
  return reader;
}

Result<StepReader> StepReader::FromTexts(const FileSystem& fs, std::string directory, Texts texts,
                                         std::chrono::milliseconds grace) {
  StepReader reader(fs, std::move(directory));
  reader.grace_ = grace;
  KEEL_ASSIGN_OR_RETURN(reader.manifest_, ParseManifest(fs, reader.directory_, texts.manifest));
  KEEL_RETURN_IF_ERROR(reader.Adopt(std::move(texts)));
  return reader;
}

Status StepReader::Adopt(Texts texts) {
  manifest_text_ = std::move(texts.manifest);
  const std::string where = fs_->Describe(PathOf(kIndexName));
  if (static_cast<int64_t>(texts.index.size()) != manifest_.index_size) {
    return Damaged(fmt::format("{}: has {} bytes, the manifest says {}", where, texts.index.size(),
                               manifest_.index_size));
  }
  const Digest128 digest = DigestOfText(texts.index, manifest_.chunk_bytes).whole;
  if (digest != manifest_.index_digest) {
    return Damaged(fmt::format("{}: its digest is {}, the manifest says {}", where, digest.ToHex(),
                               manifest_.index_digest.ToHex()));
  }
  KEEL_ASSIGN_OR_RETURN(index_, Index::Parse(std::move(texts.index), where));
  if (index_.chunk_bytes() != manifest_.chunk_bytes ||
      index_.files() != static_cast<int>(manifest_.files.size())) {
    return Damaged(fmt::format("{}: does not describe the files of the manifest", where));
  }
  for (int i = 0; i < index_.files(); ++i) {
    const IndexFile file = index_.file(i);
    const ManifestFile* listed = manifest_.Find(file.path);
    if (listed == nullptr || listed->size != file.size ||
        DigestOfChunks(file.size, index_.chunks(file)) != listed->digest) {
      return Damaged(
          fmt::format("{}: '{}' is another file than in the manifest", where, file.path));
    }
  }
  return Status::Ok();
}

StepReader StepReader::FromIndex(const FileSystem& fs, std::string directory, Index index) {
  StepReader reader(fs, std::move(directory));
  reader.manifest_.step = -1;
  reader.manifest_.chunk_bytes = index.chunk_bytes();
  reader.index_ = std::move(index);
  return reader;
}

void StepReader::ReplaceIndex(Index index) {
  index_ = std::move(index);
  headers_ = std::make_shared<HeaderCheck>();
}

std::string StepReader::PathOf(std::string_view file) const {
  return directory_.empty() ? std::string(file) : fmt::format("{}/{}", directory_, file);
}

int StepReader::FindFile(std::string_view path) const {
  int low = 0;
  int high = index_.files();
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (index_.file(middle).path < path) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < index_.files() && index_.file(low).path == path ? low : -1;
}

Status StepReader::CheckFile(const ManifestFile& file) const {
  const std::string path = PathOf(file.path);
  const Result<FileInfo> info = fs_->Stat(path);
  if (!info.ok()) {
    return Unread(
        info.status(),
        fmt::format("{}: file of step {} {}: {}", fs_->Describe(path), manifest_.step,
                    info.status().code() == StatusCode::kNotFound ? "is missing" : "cannot be read",
                    info.status().message()));
  }
  if (info->kind != FileKind::kFile) {
    return Damaged(fmt::format("{}: is not a regular file", fs_->Describe(path)));
  }
  return CheckSize(path, info->size, file.size);
}

Status StepReader::CheckSize(std::string_view path, int64_t found, int64_t listed) const {
  if (found == listed) return Status::Ok();
  return Damaged(fmt::format("{}: has {} bytes, the manifest of step {} says {}",
                             fs_->Describe(path), found, manifest_.step, listed));
}

Result<std::unique_ptr<File>> StepReader::OpenFile(int file) const {
  const IndexFile listed = index_.file(file);
  const std::string path = PathOf(listed.path);
  const Stopwatch watch;
  for (;;) {
    Result<std::unique_ptr<File>> opened = fs_->Open(path);
    Status status = opened.status();
    if (!status.ok())
      status = Unread(status, fmt::format("{}: {}", fs_->Describe(path), status.message()));
    // Whose every file was looked at when it was opened needs no second look.
    if (opened.ok() && grace_.count() > 0) {
      KEEL_ASSIGN_OR_RETURN(const int64_t size, (*opened)->Size());
      status = CheckSize(path, size, listed.size);
    }
    if (status.ok()) return opened;
    if (status.code() == StatusCode::kExhausted ||
        watch.Elapsed() * 1000 >= static_cast<double>(grace_.count()))
      return status;
    std::this_thread::sleep_for(kOpenAgain);
  }
}

Result<ShardTable> StepReader::Tensors(std::string_view scope) const {
  ShardTable table;
  const int id = index_.FindScope(scope);
  if (id < 0) return table;
  const auto [first, count] = index_.tensor_range(id);
  for (int64_t t = first; t < first + count; ++t) {
    const TensorInfo info = index_.tensor(t).Info();
    KEEL_RETURN_IF_ERROR(table.Add(info, Box::Whole(info.shape)));
  }
  return table;
}

// "tensor a", "tensors a, b and 3 more": those with a byte in [begin, end) of a file.
std::string StepReader::HeldIn(int file_id, int64_t begin, int64_t end) const {
  if (!index_.file(file_id).path.ends_with(".safetensors")) return "no tensor: it is a document";
  const std::vector<std::string> tensors = index_.TensorsIn(file_id, begin, end);
  if (tensors.empty()) return begin == 0 ? "its header" : "no tensor";
  std::string held = tensors.size() == 1 ? "tensor " : "tensors ";
  for (size_t i = 0; i < tensors.size() && i < 5; ++i)
    held += (i > 0 ? ", " : "") + Printable(tensors[i]);
  if (tensors.size() > 5) held += fmt::format(" and {} more", tensors.size() - 5);
  return held;
}

std::pair<int64_t, int64_t> StepReader::RangeOf(ChunkId id) const {
  const int64_t begin = id.chunk * index_.chunk_bytes();
  return {begin, std::min(index_.chunk_bytes(), index_.file(id.file).size - begin)};
}

Result<std::shared_ptr<const File>> StepReader::OpenFiles::Get(int file) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, open] : files_) {
    if (id == file) return open;
  }
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, reader_.OpenFile(file));
  files_.emplace_back(file, std::move(opened));
  if (files_.size() > kMostOpenFiles) files_.pop_front();
  return files_.back().second;
}

std::string StepReader::DescribeChunk(ChunkId id) const {
  const auto [begin, size] = RangeOf(id);
  return fmt::format("{}: chunk {} (bytes {} to {}) of step {}, holding {}",
                     fs_->Describe(PathOf(index_.file(id.file).path)), id.chunk, begin,
                     begin + size, manifest_.step, HeldIn(id.file, begin, begin + size));
}

Status StepReader::ReadChunk(const File& file, ChunkId id, Scratch* scratch,
                             const BlockPlace& place, const BlockSink& sink) const {
  const auto [begin, size] = RangeOf(id);
  scratch->other_header = false;
  for (int64_t at = 0; at < size; at += kBlockBytes) {
    const Status status = ReadBlock(file, id, at, scratch, place, sink);
    if (status.ok()) continue;
    (void)scratch->hasher.Finish();
    return status;
  }
  const Digest128 actual = scratch->hasher.Finish();
  const Digest128 expected = index_.chunk(index_.file(id.file), id.chunk);
  if (actual == expected) return scratch->other_header ? CompareHeader(id.file) : Status::Ok();
  return Damaged(fmt::format("{}: XXH3-128 is {}, expected {}", DescribeChunk(id), actual.ToHex(),
                             expected.ToHex()));
}

Status StepReader::CompareHeader(int file) const {
  const std::string_view path = index_.file(file).path;
  // Whole models have headers of another kind; where they are read they are the index.
  const ManifestFile* const listed = manifest_.Find(path);
  if (listed != nullptr && listed->role == FileRole::kHfModel) return Status::Ok();
  return headers_->Compare(index_, file, *fs_, PathOf(path));
}

Status StepReader::ReadBlock(const File& file, ChunkId id, int64_t at, Scratch* scratch,
                             const BlockPlace& place, const BlockSink& sink) const {
  const auto [begin, size] = RangeOf(id);
  const int64_t bytes = std::min(kBlockBytes, size - at);
  std::byte* memory = nullptr;
  if (place) {
    KEEL_ASSIGN_OR_RETURN(memory, place(at));
  }
  if (memory == nullptr) {
    if (scratch->block.empty()) scratch->block.resize(static_cast<size_t>(kBlockBytes));
    memory = scratch->block.data();
  }
  const std::span<std::byte> block(memory, static_cast<size_t>(bytes));
  const Result<int64_t> read = file.ReadAt(begin + at, block);
  if (!read.ok()) {
    return Unread(read.status(), fmt::format("{}: {}", DescribeChunk(id), read.status().message()));
  }
  if (*read != bytes) {
    return Damaged(
        fmt::format("{}: the file ends after {} bytes of it", DescribeChunk(id), at + *read));
  }
  scratch->hasher.Update(block);
  if (!scratch->other_header)
    scratch->other_header = !headers_->IsExpected(index_, id.file, begin + at, block);
  return sink ? sink(at, block) : Status::Ok();
}

Status StepReader::ReadChunkTo(const ReadPlan& plan, OpenFiles* files, ChunkId id,
                               const ChunkId* later, Scratch* scratch,
                               const std::function<void()>& between) const {
  KEEL_ASSIGN_OR_RETURN(const auto file, files->Get(id.file));
  if (later != nullptr) Prefetch(*file, id, *later);
  const int64_t begin = RangeOf(id).first;
  return ReadChunk(*file, id, scratch, nullptr, [&](int64_t at, std::span<const std::byte> block) {
    plan.Scatter(id.file, begin + at, block);
    if (between) between();
    return Status::Ok();
  });
}

void StepReader::Prefetch(const File& file, ChunkId now, ChunkId later) const {
  if (later.file != now.file) return;
  const auto [begin, size] = RangeOf(later);
  file.Prefetch(begin, size);
}

Result<ReadStats> StepReader::Read(std::span<const ReadRequest> requests, int threads) const {
  Stopwatch watch;
  ReadStats stats;
  const Result<ReadPlan> plan = ReadPlan::Make(index_, requests);
  if (!plan.ok()) return plan.status().WithContext(fs_->Describe(directory_));
  std::vector<ChunkId> chunks;
  for (const ChunkNeed& need : NeedsOf(*plan, index_)) {
    for (int64_t c = need.first; c < need.first + need.count; ++c) chunks.push_back({need.file, c});
  }
  stats.planned_s = watch.Lap();
  KEEL_ASSIGN_OR_RETURN(stats.bytes, ReadChunks(*plan, chunks, threads));
  stats.read_s = watch.Lap();
  return stats;
}

Result<int64_t> StepReader::ReadChunks(const ReadPlan& plan, std::span<const ChunkId> chunks,
                                       int threads) const {
  OpenFiles files(*this);
  const auto count = static_cast<int64_t>(chunks.size());
  const int workers = std::max(1, threads);
  std::vector<Scratch> scratch(static_cast<size_t>(workers));
  const Status status = ParallelFor(count, workers, [&](int64_t i, int worker) {
    const ChunkId* later =
        i + kPrefetchChunks < count ? &chunks[static_cast<size_t>(i + kPrefetchChunks)] : nullptr;
    return ReadChunkTo(plan, &files, chunks[static_cast<size_t>(i)], later,
                       &scratch[static_cast<size_t>(worker)]);
  });
  KEEL_RETURN_IF_ERROR(status);
  int64_t bytes = 0;
  for (const ChunkId& id : chunks) bytes += RangeOf(id).second;
  return bytes;
}

Result<std::vector<StepReader::Damage>> StepReader::VerifyFiles(std::span<const int> files,
                                                                int threads, int64_t* bytes) const {
  std::vector<int> all;
  if (files.empty()) {
    for (int f = 0; f < index_.files(); ++f) all.push_back(f);
    files = all;
  }
  std::vector<Damage> damage;
  std::mutex mutex;
  const auto report = [&](int file, int64_t chunk, const Status& status, std::string_view more) {
    std::lock_guard lock(mutex);
    damage.push_back({std::string(index_.file(file).path), chunk,
                      fmt::format("{}{}", status.message(), more),
                      status.cause() == StatusCause::kDenied});
  };
  OpenFiles open(*this);
  std::vector<ChunkId> work;
  for (const int f : files) {
    if (const ManifestFile* listed = manifest_.Find(index_.file(f).path); listed != nullptr) {
      if (const Status status = CheckFile(*listed); !status.ok()) {
        if (status.code() == StatusCode::kExhausted) return status;
        report(f, -1, status, fmt::format("; it held {}", HeldIn(f, 0, listed->size)));
        continue;
      }
    }
    if (const auto file = open.Get(f); !file.ok()) {
      if (file.status().code() == StatusCode::kExhausted) return file.status();
      report(f, -1, file.status(), "");
      continue;
    }
    for (int64_t c = 0; c < index_.file(f).chunk_count; ++c) work.push_back({f, c});
    if (bytes != nullptr) *bytes += index_.file(f).size;
  }
  const auto count = static_cast<int64_t>(work.size());
  const int workers = std::max(1, threads);
  std::vector<Scratch> scratch(static_cast<size_t>(workers));
  const Status read = ParallelFor(count, workers, [&](int64_t i, int worker) {
    const ChunkId id = work[static_cast<size_t>(i)];
    KEEL_ASSIGN_OR_RETURN(const auto file, open.Get(id.file));
    if (i + kPrefetchChunks < count)
      Prefetch(*file, id, work[static_cast<size_t>(i + kPrefetchChunks)]);
    Status status = ReadChunk(*file, id, &scratch[static_cast<size_t>(worker)], nullptr, nullptr);
    if (status.code() == StatusCode::kDataLoss) {
      report(id.file, id.chunk, status, "");
      return Status::Ok();
    }
    return status;
  });
  KEEL_RETURN_IF_ERROR(read);
  std::sort(damage.begin(), damage.end(), [](const Damage& a, const Damage& b) {
    return std::tie(a.file, a.chunk) < std::tie(b.file, b.chunk);
  });
  return damage;
}

Status StepReader::StreamFile(std::string_view path,
                              const std::function<Status(std::span<const std::byte>)>& sink) const {
  const int id = FindFile(path);
  const std::string full = PathOf(path);
  if (id < 0) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: not part of the checkpoint", fs_->Describe(full)));
  }
  OpenFiles files(*this);
  KEEL_ASSIGN_OR_RETURN(const auto file, files.Get(id));
  Scratch scratch;
  std::vector<std::byte> buffer(
      static_cast<size_t>(std::min(index_.chunk_bytes(), index_.file(id).size)));
  for (int64_t chunk = 0; chunk < index_.file(id).chunk_count; ++chunk) {
    KEEL_RETURN_IF_ERROR(ReadChunk(
        *file, {id, chunk}, &scratch, [&](int64_t at) { return buffer.data() + at; }, nullptr));
    KEEL_RETURN_IF_ERROR(
        sink(std::span(buffer).first(static_cast<size_t>(RangeOf({id, chunk}).second))));
  }
  return Status::Ok();
}

Result<std::string> StepReader::ReadText(std::string_view path) const {
  const ManifestFile* listed = manifest_.Find(path);
  const std::string full = PathOf(path);
  if (listed == nullptr) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: not part of the checkpoint", fs_->Describe(full)));
  }
  Result<std::string> text = ReadFile(*fs_, full, listed->size);
  if (!text.ok())
    return Unread(text.status(),
                  fmt::format("{}: {}", fs_->Describe(full), text.status().message()));
  const Digest128 digest = DigestOfText(*text, manifest_.chunk_bytes).whole;
  if (digest != listed->digest) {
    return Damaged(fmt::format("{}: chunk 0 of step {}: its digest is {}, the manifest says {}",
                               fs_->Describe(full), manifest_.step, digest.ToHex(),
                               listed->digest.ToHex()));
  }
  return text;
}

}  // namespace keel::checkpoint
