#include "checkpoint/save/snapshot_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/memory/page_memory.h"
#include "common/tensors/packed_box.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kAlignment = 4096;
// Copies from this size on are hashed at once; smaller ones when there are several.
constexpr int64_t kHashAtOnce = 4096;
// Blocks in which copying and hashing alternate, so that the hash finds the copy in the cache.
constexpr int64_t kFuse = 128 << 10;
// Runs from this size on are written from where they lie, by the buffered back-end.
constexpr int64_t kWriteInPlace = 1 << 20;
// Slots through which stable pieces pass that cannot be written from where they lie: what is being
// written, and two to fill.
constexpr int kPassingSlots = kWritesUnderWay + 2;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// Calls run(bytes) for each contiguous run of the piece, in row-major order; for copies of some of
// its values at a time where neighbours in that order are none in memory: small ones, that nobody
// writes from where they lie.
template <typename Run>
Status ForEachRun(const WritePiece& piece, const Run& run) {
  if (piece.bytes() == 0) return Status::Ok();
  int outer = piece.size.size();
  int64_t elements = 1;
  while (outer > 0 && (piece.size[outer - 1] == 1 || piece.view.strides[outer - 1] == elements)) {
    elements *= piece.size[--outer];
  }
  if (elements == 1 && outer > 0) {
    const Box whole = Box::Whole(piece.size);
    return ForEachPacked(whole, whole, piece.view, piece.element_size, kFuse,
                         [&](const Box&, std::span<const std::byte> bytes) { return run(bytes); });
  }
  const auto length = static_cast<size_t>(elements * piece.element_size);
  Dims at = Dims::Filled(outer, 0);
  for (;;) {
    int64_t offset = 0;
    for (int d = 0; d < outer; ++d) offset += at[d] * piece.view.strides[d];
    KEEL_RETURN_IF_ERROR(run(std::span(piece.view.data + offset * piece.element_size, length)));
    int d = outer - 1;
    while (d >= 0 && ++at[d] == piece.size[d]) at[d--] = 0;
    if (d < 0) return Status::Ok();
  }
}

}  // namespace

int64_t FileToWrite::bytes() const {
  int64_t total = static_cast<int64_t>(header.size());
  for (const WritePiece& piece : pieces) total += piece.bytes();
  return total;
}

// Slots of `chunk_bytes`, in one block per growth.
struct SnapshotWriter::Pool {
  std::vector<PageMemory> blocks;
  std::vector<std::byte*> slots;

  Status Grow(size_t wanted, int64_t slot_bytes) {
    if (wanted <= slots.size()) return Status::Ok();
    const size_t more = wanted - slots.size();
    const int64_t bytes = static_cast<int64_t>(more) * slot_bytes;
    PageMemory block = AllocatePages(bytes);
    if (block == nullptr) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("no memory for {} bytes of staging", bytes));
    }
    std::memset(block.get(), 0, static_cast<size_t>(bytes));  // faults the pages in, once
    // What follows cannot fail half-way, which would leave slots of memory that is gone.
    slots.reserve(wanted);
    blocks.reserve(blocks.size() + 1);
    for (size_t i = 0; i < more; ++i)
      slots.push_back(block.get() + static_cast<int64_t>(i) * slot_bytes);
    blocks.push_back(std::move(block));
    return Status::Ok();
  }
};

// One Write: the producer's side, and what writes for it.
class SnapshotWriter::Job {
 public:
  Job(SnapshotWriter& owner, std::vector<FileToWrite> files, WriteHooks hooks)
      : owner_(owner),
        files_(std::move(files)),
        hooks_(std::move(hooks)),
        hasher_(owner.chunk_bytes_),
        writers_(owner.fs_, owner.backend_, Targets(), owner.pool_->slots.size(), hooks_) {}

  ~Job() {
    writers_.Fail(Status(StatusCode::kCancelled, "abandoned"));  // short: takes no memory
    if (stager_.joinable()) stager_.join();
  }

  // Copying on a thread of its own, and the writers, which wait for the directory.
  Status StartStaging() {
    try {
      for (int i = 0; i < owner_.writers_; ++i) writers_.StartThread();
      stager_ = std::thread([this] { StageAll(); });
    } catch (const std::system_error& e) {
      return Status(StatusCode::kUnavailable, fmt::format("no thread for a save: {}", e.what()));
    }
    return Status::Ok();
  }

  // Copying on this thread. A few slots are not worth a writer's thread.
  void StageHere(const std::string& directory) {
    int64_t total = 0;
    for (const FileToWrite& file : files_) total += file.bytes();
    for (int i = 0; total > 2 * owner_.chunk_bytes_ && i < owner_.writers_; ++i) {
      try {
        writers_.StartThread();
      } catch (const std::system_error&) {
        break;  // with none at all, the writes happen on this thread
      }
    }
    writers_.LetWrite(directory);
    StageAll();
  }

  void LetWrite(const std::string& directory) { writers_.LetWrite(directory); }

  Result<std::vector<ChunkedDigest>> Finish(WriteTimes* times) {
    if (stager_.joinable()) stager_.join();
    writers_.Join();
    KEEL_RETURN_IF_ERROR(writers_.failure());
    times->staged_s = staged_s_;
    times->fsync_s = writers_.fsync_s();
    times->written_s = std::max(0.0, writers_.elapsed_s() - times->fsync_s);
    return std::move(digests_);
  }

 private:
  std::vector<FileWriters::Target> Targets() const {
    std::vector<FileWriters::Target> targets;
    for (const FileToWrite& file : files_)
      targets.push_back({file.path, file.bytes(), file.pieces.size()});
    return targets;
  }

  void StageAll() {
    const Stopwatch watch;
    try {
      if (Status status = StageFiles(); !status.ok()) writers_.Fail(std::move(status));
    } catch (const std::exception& e) {
      writers_.Fail(StatusOf(e));
    }
    staged_s_ = watch.Elapsed();
    writers_.ProducerIsDone();
  }

  Status StageFiles() {
    for (file_ = 0; file_ < files_.size(); ++file_) {
      KEEL_ASSIGN_OR_RETURN(ChunkedDigest digest, StageFile());
      digests_.push_back(std::move(digest));
    }
    return Status::Ok();
  }

  Result<ChunkedDigest> StageFile() {
    const ScopedSpan span(hooks_.spans, "copy", hooks_.SpansOf(hooks_.copier));
    const FileToWrite& file = files_[file_];
    offset_ = 0;
    KEEL_RETURN_IF_ERROR(Append(std::as_bytes(std::span(file.header)), nullptr));
    for (piece_ = 0; piece_ < file.pieces.size(); ++piece_) {
      const WritePiece& piece = file.pieces[piece_];
      if (hooks_.arrived) KEEL_RETURN_IF_ERROR(hooks_.arrived(file_, piece_));
      KEEL_RETURN_IF_ERROR(
          ForEachRun(piece, [&](std::span<const std::byte> run) { return Append(run, &piece); }));
      writers_.PieceIsStaged(file_, piece_);
    }
    if (slot_ != FileWriters::kNoSlot && fill_ > 0) KEEL_RETURN_IF_ERROR(FlushSlot());
    ChunkedDigest digest = hasher_.Finish();
    if (digest.size != file.bytes()) {
      return Status(StatusCode::kInternal, fmt::format("staged {} bytes of a file planned with {}",
                                                       digest.size, file.bytes()));
    }
    KEEL_RETURN_IF_ERROR(writers_.CompleteFile(file_));
    return digest;
  }

  Status Append(std::span<const std::byte> bytes, const WritePiece* piece) {
    if (piece != nullptr && piece->stable && owner_.backend_ == IoBackend::kBuffered &&
        static_cast<int64_t>(bytes.size()) >= kWriteInPlace) {
      return AppendInPlace(bytes);
    }
    while (!bytes.empty()) {
      if (slot_ == FileWriters::kNoSlot) KEEL_RETURN_IF_ERROR(Acquire());
      const size_t take = static_cast<size_t>(std::min<int64_t>(
          {static_cast<int64_t>(bytes.size()), owner_.chunk_bytes_ - fill_, kFuse}));
      std::memcpy(slot() + fill_, bytes.data(), take);
      fill_ += static_cast<int64_t>(take);
      // The copy is digested, not the source, and while it is in the cache; many small ones at
      // once.
      if (static_cast<int64_t>(take) >= kHashAtOnce) HashCopied();
      bytes = bytes.subspan(take);
      if (fill_ == owner_.chunk_bytes_) KEEL_RETURN_IF_ERROR(FlushSlot());
    }
    return Status::Ok();
  }

  std::byte* slot() { return owner_.pool_->slots[static_cast<size_t>(slot_)]; }

  void HashCopied() {
    hasher_.Update(std::span(slot() + hashed_, static_cast<size_t>(fill_ - hashed_)));
    hashed_ = fill_;
  }

  Status AppendInPlace(std::span<const std::byte> bytes) {
    if (slot_ != FileWriters::kNoSlot && fill_ > 0) KEEL_RETURN_IF_ERROR(FlushSlot());
    while (!bytes.empty()) {
      const auto part =
          bytes.first(std::min(bytes.size(), static_cast<size_t>(owner_.chunk_bytes_)));
      hasher_.Update(part);
      KEEL_RETURN_IF_ERROR(writers_.Submit({file_, offset_, part, FileWriters::kNoSlot, piece_}));
      offset_ += static_cast<int64_t>(part.size());
      bytes = bytes.subspan(part.size());
    }
    return Status::Ok();
  }

  Status FlushSlot() {
    HashCopied();
    int64_t size = fill_;
    if (WritesBlocks(owner_.backend_)) {
      size = RoundUp(fill_);  // only the last one needs it; the file is cut to its size afterwards
      std::memset(slot() + fill_, 0, static_cast<size_t>(size - fill_));
    }
    const FileWriters::Item item{file_, offset_, std::span(slot(), static_cast<size_t>(size)),
                                 slot_, FileWriters::kNoPiece};
    offset_ += fill_;
    slot_ = FileWriters::kNoSlot;
    return writers_.Submit(item);
  }

  Status Acquire() {
    KEEL_ASSIGN_OR_RETURN(slot_, writers_.AcquireSlot());
    fill_ = 0;
    hashed_ = 0;
    return Status::Ok();
  }

  SnapshotWriter& owner_;
  const std::vector<FileToWrite> files_;
  WriteHooks hooks_;
  ChunkHasher hasher_;
  size_t file_ = 0;
  size_t piece_ = 0;
  int64_t offset_ = 0;               // of the next write
  int slot_ = FileWriters::kNoSlot;  // being filled
  int64_t fill_ = 0;                 // bytes in it
  int64_t hashed_ = 0;               // of these, already digested
  std::vector<ChunkedDigest> digests_;
  double staged_s_ = 0;
  FileWriters writers_;
  std::thread stager_;  // last: it uses all of the above
};

SnapshotWriter::SnapshotWriter(FileSystem& fs, IoBackend backend, int64_t chunk_bytes, int writers)
    : fs_(fs),
      backend_(backend),
      chunk_bytes_(RoundUp(chunk_bytes)),
      writers_(writers),
      pool_(std::make_unique<Pool>()) {}

SnapshotWriter::~SnapshotWriter() = default;

Status SnapshotWriter::Reserve(std::span<const FileToWrite> files, std::optional<int64_t> cap) {
  // Every file starts a slot of its own; stable pieces pass through a few slots.
  int64_t slots = 0;
  bool passing = false;
  for (const FileToWrite& file : files) {
    int64_t copied = static_cast<int64_t>(file.header.size());
    for (const WritePiece& piece : file.pieces) {
      if (piece.stable) {
        passing = true;
      } else {
        copied += piece.bytes();
      }
    }
    slots += (copied + chunk_bytes_ - 1) / chunk_bytes_;
  }
  if (passing) slots += kPassingSlots;
  if (cap) slots = std::min(slots, *cap / chunk_bytes_);
  return pool_->Grow(static_cast<size_t>(std::max<int64_t>(2, slots)), chunk_bytes_);
}

int64_t SnapshotWriter::pool_bytes() const {
  return static_cast<int64_t>(pool_->slots.size()) * chunk_bytes_;
}

Status SnapshotWriter::Stage(std::vector<FileToWrite> files, WriteHooks hooks) {
  if (writers_ == 0) return Status(StatusCode::kUnavailable, "no thread to copy on");
  if (pool_->slots.size() < 2) KEEL_RETURN_IF_ERROR(pool_->Grow(kPassingSlots, chunk_bytes_));
  hooks.copier = SpanLane::kCopier;
  job_ = std::make_unique<Job>(*this, std::move(files), std::move(hooks));
  Status status = job_->StartStaging();
  if (!status.ok()) job_.reset();
  return status;
}

Result<std::vector<ChunkedDigest>> SnapshotWriter::WriteTo(const std::string& directory,
                                                           WriteTimes* times) {
  job_->LetWrite(directory);
  Result<std::vector<ChunkedDigest>> digests = job_->Finish(times);
  job_.reset();
  return digests;
}

void SnapshotWriter::Abandon() { job_.reset(); }

Result<std::vector<ChunkedDigest>> SnapshotWriter::Write(const std::string& directory,
                                                         std::vector<FileToWrite> files,
                                                         WriteHooks hooks, WriteTimes* times) {
  if (pool_->slots.size() < 2) KEEL_RETURN_IF_ERROR(pool_->Grow(kPassingSlots, chunk_bytes_));
  Job job(*this, std::move(files), std::move(hooks));
  job.StageHere(directory);
  return job.Finish(times);
}

}  // namespace keel::checkpoint
