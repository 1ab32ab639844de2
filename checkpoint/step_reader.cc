#include "checkpoint/step_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "checkpoint/box_runs.h"
#include "checkpoint/chunk_digest.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel_for.h"
#include "common/clock.h"

namespace keel::checkpoint {
namespace {

Status Damaged(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }

// A part of a saved box that goes to one destination view.
struct Piece {
  int64_t begin = 0;  // of the saved box's data in the file
  BoxRuns runs;       // byte runs, ascending in the saved box
  std::byte* destination = nullptr;
};

// Chunks that are announced to the disk ahead of being read: a single reader without them gets a
// third of a disk's rate.
constexpr int64_t kPrefetchChunks = 4;

struct ChunkWork {
  int file = 0;
  int64_t chunk = 0;
  std::vector<const Piece*> pieces;  // none: only to be verified
};

// Copies what `piece` has in the file's bytes [start, start + data.size()).
void Scatter(const Piece& piece, int64_t start, std::span<const std::byte> data) {
  const int64_t low = start - piece.begin;
  const int64_t high = low + static_cast<int64_t>(data.size());
  for (int64_t i = piece.runs.FirstEndingAfter(low); i < piece.runs.count(); ++i) {
    const auto [source, destination] = piece.runs.At(i);
    if (source >= high) break;
    const int64_t from = std::max(source, low);
    const int64_t to = std::min(source + piece.runs.bytes(), high);
    std::memcpy(piece.destination + destination + (from - source), data.data() + (from - low),
                static_cast<size_t>(to - from));
  }
}

// Where the whole of [start, start + size) lies in one run of the piece; null otherwise.
std::byte* DirectTarget(const Piece& piece, int64_t start, int64_t size) {
  const int64_t low = start - piece.begin;
  const int64_t i = piece.runs.FirstEndingAfter(low);
  if (i >= piece.runs.count()) return nullptr;
  const auto [source, destination] = piece.runs.At(i);
  if (source > low || low + size > source + piece.runs.bytes()) return nullptr;
  return piece.destination + destination + (low - source);
}

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
  KEEL_ASSIGN_OR_RETURN(reader.manifest_, ReadManifest(fs, reader.directory_));
  const Manifest& manifest = reader.manifest_;
  const std::string path = reader.PathOf(kIndexName);
  const std::string where = fs.Describe(path);
  Result<std::string> bytes = ReadFile(fs, path, manifest.index_size + 1);
  if (!bytes.ok()) {
    return Damaged(
        fmt::format("{}: the index cannot be read: {}", where, bytes.status().message()));
  }
  if (static_cast<int64_t>(bytes->size()) != manifest.index_size) {
    return Damaged(fmt::format("{}: has {} bytes, the manifest says {}", where, bytes->size(),
                               manifest.index_size));
  }
  const Digest128 digest = DigestOfText(*bytes, manifest.chunk_bytes).whole;
  if (digest != manifest.index_digest) {
    return Damaged(fmt::format("{}: its digest is {}, the manifest says {}", where, digest.ToHex(),
                               manifest.index_digest.ToHex()));
  }
  KEEL_ASSIGN_OR_RETURN(reader.index_, Index::Parse(std::move(bytes).value(), where));
  if (reader.index_.chunk_bytes() != manifest.chunk_bytes ||
      reader.index_.files() != static_cast<int>(manifest.files.size())) {
    return Damaged(fmt::format("{}: does not describe the files of the manifest", where));
  }
  for (int i = 0; i < reader.index_.files(); ++i) {
    const IndexFile file = reader.index_.file(i);
    const ManifestFile* listed = manifest.Find(file.path);
    if (listed == nullptr || listed->size != file.size ||
        DigestOfChunks(file.size, reader.index_.chunks(file)) != listed->digest) {
      return Damaged(
          fmt::format("{}: '{}' is another file than in the manifest", where, file.path));
    }
  }
  return reader;
}

StepReader StepReader::FromIndex(const FileSystem& fs, std::string directory, Index index) {
  StepReader reader(fs, std::move(directory));
  reader.manifest_.step = -1;
  reader.manifest_.chunk_bytes = index.chunk_bytes();
  reader.index_ = std::move(index);
  return reader;
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
    return Damaged(fmt::format("{}: file of step {} is missing: {}", fs_->Describe(path),
                               manifest_.step, info.status().message()));
  }
  if (info->kind != FileKind::kFile) {
    return Damaged(fmt::format("{}: is not a regular file", fs_->Describe(path)));
  }
  if (info->size != file.size) {
    return Damaged(fmt::format("{}: has {} bytes, the manifest of step {} says {}",
                               fs_->Describe(path), info->size, manifest_.step, file.size));
  }
  return Status::Ok();
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
  const std::vector<std::string> tensors = index_.TensorsIn(file_id, begin, end);
  if (tensors.empty()) return begin == 0 ? "its header" : "no tensor";
  std::string held = tensors.size() == 1 ? "tensor " : "tensors ";
  for (size_t i = 0; i < tensors.size() && i < 5; ++i) held += (i > 0 ? ", " : "") + tensors[i];
  if (tensors.size() > 5) held += fmt::format(" and {} more", tensors.size() - 5);
  return held;
}

// Reads a chunk into `buffer` (at least chunk_bytes long) and compares its digest.
Status StepReader::ReadChunk(const File& file, int file_id, int64_t chunk,
                             std::span<std::byte> buffer, int64_t* got) const {
  const IndexFile entry = index_.file(file_id);
  const int64_t begin = chunk * index_.chunk_bytes();
  const int64_t size = std::min(index_.chunk_bytes(), entry.size - begin);
  const auto describe = [&] {
    return fmt::format("{}: chunk {} (bytes {} to {}) of step {}, holding {}",
                       fs_->Describe(PathOf(entry.path)), chunk, begin, begin + size,
                       manifest_.step, HeldIn(file_id, begin, begin + size));
  };
  const Result<int64_t> read = file.ReadAt(begin, buffer.first(static_cast<size_t>(size)));
  if (!read.ok()) return Damaged(fmt::format("{}: {}", describe(), read.status().message()));
  if (*read != size)
    return Damaged(fmt::format("{}: the file ends after {} bytes of it", describe(), *read));
  const Digest128 actual = Hash128(buffer.first(static_cast<size_t>(size)));
  const Digest128 expected = index_.chunk(entry, chunk);
  if (actual != expected) {
    return Damaged(fmt::format("{}: XXH3-128 is {}, expected {}", describe(), actual.ToHex(),
                               expected.ToHex()));
  }
  *got = size;
  return Status::Ok();
}

Result<ReadStats> StepReader::Read(std::span<const ReadRequest> requests,
                                   const std::set<int>& verify_files, int threads) const {
  Stopwatch watch;
  ReadStats stats;
  // 1. Plan: which parts of which saved boxes go where.
  std::map<int, std::vector<Piece>> pieces;  // by file
  for (const ReadRequest& request : requests) {
    const ShardTable& wanted = *request.destination;
    std::vector<ShardTable> sources;
    std::vector<int> source_file;
    std::vector<std::vector<int64_t>> source_box;  // per source table and shard: box id
    std::map<int, size_t> by_file;
    std::vector<std::vector<const Box*>> wanted_boxes(wanted.tensors().size());
    for (const Shard& shard : wanted.shards()) {
      wanted_boxes[static_cast<size_t>(shard.tensor)].push_back(&shard.box);
    }
    const int scope = index_.FindScope(request.scope);
    for (size_t w = 0; scope >= 0 && w < wanted.tensors().size(); ++w) {
      const TensorInfo& tensor = wanted.tensors()[w];
      const int64_t t = index_.FindTensor(scope, tensor.name);
      if (t < 0) continue;  // the planner reports it
      const IndexTensor saved = index_.tensor(t);
      const bool same_shape = saved.shape == tensor.shape;
      for (int64_t b = saved.first_box; b < saved.first_box + saved.box_count; ++b) {
        const IndexBox box = index_.box(b);
        // Of a tensor in a thousand pieces a rank needs a few; of one of another shape the planner
        // needs any, to say so.
        const bool needed =
            same_shape
                ? std::any_of(wanted_boxes[w].begin(), wanted_boxes[w].end(),
                              [&](const Box* one) { return Intersect(*one, box.box).has_value(); })
                : b == saved.first_box;
        // The first box stands for a tensor of which this rank wants what nobody has.
        if (!needed && b != saved.first_box) continue;
        const auto [place, fresh] = by_file.try_emplace(box.file, sources.size());
        if (fresh) {
          sources.emplace_back();
          source_file.push_back(box.file);
          source_box.emplace_back();
        }
        KEEL_RETURN_IF_ERROR(sources[place->second].Add(saved.Info(), box.box));
        source_box[place->second].push_back(b);
      }
    }
    const auto plan = PlanTransfer(sources, std::span(&wanted, 1), request.options);
    if (!plan.ok()) {
      return plan.status().WithContext(
          fmt::format("{} of {}", request.scope, fs_->Describe(directory_)));
    }
    for (const Transfer& transfer : plan->transfers) {
      const size_t source = static_cast<size_t>(transfer.source);
      const IndexBox box =
          index_.box(source_box[source][static_cast<size_t>(transfer.source_shard)]);
      const Shard& shard = wanted.shards()[static_cast<size_t>(transfer.destination_shard)];
      if (transfer.box.empty()) continue;
      Piece piece;
      piece.begin = box.begin;
      piece.runs =
          BoxRuns(transfer.box, box.box, shard.box, DTypeSize(wanted.tensor_of(shard).dtype));
      piece.destination = shard.view.data;
      pieces[source_file[source]].push_back(piece);
    }
  }

  // 2. The chunks these need, in file order, and the chunks that are only to be verified.
  const int64_t chunk_bytes = index_.chunk_bytes();
  std::vector<ChunkWork> work;
  std::map<int, std::unique_ptr<File>> files;
  for (int f = 0; f < index_.files(); ++f) {
    const auto found = pieces.find(f);
    if (found == pieces.end() && !verify_files.contains(f)) continue;
    std::map<int64_t, std::vector<const Piece*>> chunks;
    if (found != pieces.end()) {
      for (const Piece& piece : found->second) {
        const auto [first, last] = piece.runs.SourceRange();
        for (int64_t c = (piece.begin + first) / chunk_bytes; c * chunk_bytes < piece.begin + last;
             ++c) {
          chunks[c].push_back(&piece);
        }
      }
    }
    if (verify_files.contains(f)) {
      for (int64_t c = 0; c < index_.file(f).chunk_count; ++c) chunks.try_emplace(c);
    }
    for (auto& [chunk, list] : chunks) work.push_back({f, chunk, std::move(list)});
    const std::string path = PathOf(index_.file(f).path);
    Result<std::unique_ptr<File>> file = fs_->Open(path);
    if (!file.ok())
      return Damaged(fmt::format("{}: {}", fs_->Describe(path), file.status().message()));
    files.emplace(f, std::move(file).value());
  }
  stats.planned_s = watch.Lap();

  // 3. Read, verify, copy.
  const int workers = std::max(1, threads);
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(workers));
  const Status status =
      ParallelFor(static_cast<int64_t>(work.size()), workers, [&](int64_t i, int worker) {
        const ChunkWork& one = work[static_cast<size_t>(i)];
        const int64_t start = one.chunk * chunk_bytes;
        const int64_t size = std::min(chunk_bytes, index_.file(one.file).size - start);
        int64_t got = 0;
        const File& file = *files.at(one.file);
        if (i + kPrefetchChunks < static_cast<int64_t>(work.size())) {
          const ChunkWork& later = work[static_cast<size_t>(i + kPrefetchChunks)];
          files.at(later.file)->Prefetch(later.chunk * chunk_bytes, chunk_bytes);
        }
        if (one.pieces.size() == 1) {
          if (std::byte* target = DirectTarget(*one.pieces[0], start, size); target != nullptr) {
            return ReadChunk(file, one.file, one.chunk,
                             std::span(target, static_cast<size_t>(size)), &got);
          }
        }
        std::vector<std::byte>& buffer = buffers[static_cast<size_t>(worker)];
        if (buffer.empty()) buffer.resize(static_cast<size_t>(chunk_bytes));
        KEEL_RETURN_IF_ERROR(ReadChunk(file, one.file, one.chunk, buffer, &got));
        for (const Piece* piece : one.pieces)
          Scatter(*piece, start, std::span(buffer).first(static_cast<size_t>(got)));
        return Status::Ok();
      });
  KEEL_RETURN_IF_ERROR(status);
  for (const ChunkWork& one : work) {
    stats.bytes += std::min(chunk_bytes, index_.file(one.file).size - one.chunk * chunk_bytes);
  }
  stats.read_s = watch.Lap();
  return stats;
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
  const auto report = [&](int file, int64_t chunk, std::string message) {
    std::lock_guard lock(mutex);
    damage.push_back({std::string(index_.file(file).path), chunk, std::move(message)});
  };
  std::map<int, std::unique_ptr<File>> open;
  std::vector<std::pair<int, int64_t>> work;
  for (const int f : files) {
    const std::string path = PathOf(index_.file(f).path);
    if (const ManifestFile* listed = manifest_.Find(index_.file(f).path); listed != nullptr) {
      if (const Status status = CheckFile(*listed); !status.ok()) {
        report(f, -1, fmt::format("{}; it held {}", status.message(), HeldIn(f, 0, listed->size)));
        continue;
      }
    }
    Result<std::unique_ptr<File>> file = fs_->Open(path);
    if (!file.ok()) {
      report(f, -1, fmt::format("{}: {}", fs_->Describe(path), file.status().message()));
      continue;
    }
    open.emplace(f, std::move(file).value());
    for (int64_t c = 0; c < index_.file(f).chunk_count; ++c) work.emplace_back(f, c);
    if (bytes != nullptr) *bytes += index_.file(f).size;
  }
  const int workers = std::max(1, threads);
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(workers));
  const Status read =
      ParallelFor(static_cast<int64_t>(work.size()), workers, [&](int64_t i, int worker) {
        const auto [f, chunk] = work[static_cast<size_t>(i)];
        std::vector<std::byte>& buffer = buffers[static_cast<size_t>(worker)];
        if (buffer.empty()) buffer.resize(static_cast<size_t>(index_.chunk_bytes()));
        if (i + kPrefetchChunks < static_cast<int64_t>(work.size())) {
          const auto [later, later_chunk] = work[static_cast<size_t>(i + kPrefetchChunks)];
          open.at(later)->Prefetch(later_chunk * index_.chunk_bytes(), index_.chunk_bytes());
        }
        int64_t got = 0;
        const Status status = ReadChunk(*open.at(f), f, chunk, buffer, &got);
        if (status.code() == StatusCode::kDataLoss) {
          report(f, chunk, status.message());
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
  const Result<std::unique_ptr<File>> file = fs_->Open(full);
  if (!file.ok())
    return Damaged(fmt::format("{}: {}", fs_->Describe(full), file.status().message()));
  const int64_t chunks = index_.file(id).chunk_count;
  std::vector<std::byte> buffer(
      static_cast<size_t>(std::min(index_.chunk_bytes(), index_.file(id).size)));
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    int64_t got = 0;
    KEEL_RETURN_IF_ERROR(ReadChunk(**file, id, chunk, buffer, &got));
    KEEL_RETURN_IF_ERROR(sink(std::span(buffer).first(static_cast<size_t>(got))));
  }
  return Status::Ok();
}

Result<std::string> StepReader::ReadText(std::string_view path, int64_t max_bytes) const {
  const ManifestFile* listed = manifest_.Find(path);
  const std::string full = PathOf(path);
  if (listed == nullptr) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: not part of the checkpoint", fs_->Describe(full)));
  }
  Result<std::string> text = ReadFile(*fs_, full, max_bytes);
  if (!text.ok())
    return Damaged(fmt::format("{}: {}", fs_->Describe(full), text.status().message()));
  const Digest128 digest = DigestOfText(*text, manifest_.chunk_bytes).whole;
  if (digest != listed->digest) {
    return Damaged(fmt::format("{}: chunk 0 of step {}: its digest is {}, the manifest says {}",
                               fs_->Describe(full), manifest_.step, digest.ToHex(),
                               listed->digest.ToHex()));
  }
  return text;
}

}  // namespace keel::checkpoint
