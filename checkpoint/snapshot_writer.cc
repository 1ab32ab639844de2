#include "checkpoint/snapshot_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/page_memory.h"
#include "common/clock.h"
#include "common/fail_point.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kAlignment = 4096;
// Copies from this size on are hashed at once; smaller ones when there are several.
constexpr int64_t kHashAtOnce = 4096;
// Blocks in which copying and hashing alternate, so that the hash finds the copy in the cache.
constexpr int64_t kFuse = 128 << 10;
// Runs from this size on are written from where they lie, by the buffered back-end.
constexpr int64_t kWriteInPlace = 1 << 20;
constexpr int kNoBuffer = -1;
// Slots through which stable pieces pass that cannot be written from where they lie.
constexpr int kPassingSlots = 4;
constexpr size_t kQueueLimit = 16;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// Calls run(pointer, bytes) for each contiguous run of the piece, in row-major order.
template <typename Run>
Status ForEachRun(const WritePiece& piece, const Run& run) {
  if (piece.bytes() == 0) return Status::Ok();
  int outer = piece.size.size();
  int64_t elements = 1;
  while (outer > 0 && (piece.size[outer - 1] == 1 || piece.view.strides[outer - 1] == elements)) {
    elements *= piece.size[--outer];
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

std::string_view IoBackendName(IoBackend backend) {
  return backend == IoBackend::kDirect ? "direct" : "buffered";
}

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
                    fmt::format("no memory for {} bytes of staging; set "
                                "actor_rollout_ref.actor.checkpoint.staging.host_memory_cap",
                                bytes));
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

// One Write: the producer's side on the calling thread, a queue, the writer threads.
class SnapshotWriter::Job {
 public:
  Job(SnapshotWriter& owner, std::vector<FileToWrite> files, WriteHooks hooks)
      : owner_(owner),
        files_(std::move(files)),
        hooks_(std::move(hooks)),
        hasher_(owner.chunk_bytes_) {
    for (size_t i = 0; i < owner.pool_->slots.size(); ++i) free_.push_back(static_cast<int>(i));
    for (const FileToWrite& file : files_) {
      states_.emplace_back();
      states_.back().size = file.bytes();
      states_.back().unwritten.assign(file.pieces.size(), 0);
    }
  }

  ~Job() {
    Fail(Status(StatusCode::kCancelled, "abandoned"));  // short: takes no memory
    Join();
  }

  // Copying on a thread of its own, and the writers, which wait for the directory.
  Status StartStaging() {
    try {
      for (int i = 0; i < owner_.writers_; ++i) writers_.emplace_back([this] { Drain(); });
      stager_ = std::thread([this] { StageAll(); });
    } catch (const std::system_error& e) {
      return Status(StatusCode::kUnavailable, fmt::format("no thread for a save: {}", e.what()));
    }
    return Status::Ok();
  }

  // Copying on this thread. A few slots are not worth a writer's thread.
  void StageHere(const std::string& directory) {
    int64_t total = 0;
    for (const FileState& state : states_) total += state.size;
    for (int i = 0; total > 2 * owner_.chunk_bytes_ && i < owner_.writers_; ++i) {
      try {
        writers_.emplace_back([this] { Drain(); });
      } catch (const std::system_error&) {
        break;  // with none at all, the writes happen on this thread
      }
    }
    threaded_ = !writers_.empty();
    LetWrite(directory);
    StageAll();
  }

  void LetWrite(const std::string& directory) {
    const std::lock_guard lock(mutex_);
    directory_ = directory + "/";
    writing_.emplace();
    changed_.notify_all();
  }

  Result<std::vector<ChunkedDigest>> Finish(WriteTimes* times) {
    Join();
    KEEL_RETURN_IF_ERROR(failure_);
    times->staged_s = staged_s_;
    times->fsync_s = fsync_s_;
    times->written_s = std::max(0.0, writing_->Elapsed() - fsync_s_);
    return std::move(digests_);
  }

 private:
  static constexpr size_t kNoPiece = ~size_t{0};

  struct Item {
    size_t file = 0;
    int64_t offset = 0;
    std::span<const std::byte> data;
    int slot = kNoBuffer;
    size_t piece = kNoPiece;  // that is written from where it lies
  };

  // A file on its way. The mutex of the job guards the counters, `opening` the rest.
  struct FileState {
    int64_t size = 0;
    std::mutex opening;
    std::unique_ptr<File> file;
    int64_t pending = 0;  // items submitted and not written
    bool complete = false;
    std::vector<int> unwritten;  // per piece, items of it that are written from where it lies
  };

  // --- The producer ---------------------------------------------------------------------------

  void StageAll() {
    const Stopwatch watch;
    try {
      for (file_ = 0; file_ < files_.size(); ++file_) {
        Result<ChunkedDigest> digest = StageFile();
        if (!digest.ok()) return Fail(digest.status());
        digests_.push_back(std::move(digest).value());
      }
    } catch (const std::exception& e) {
      return Fail(Status(StatusCode::kInternal, e.what()));
    }
    staged_s_ = watch.Elapsed();
  }

  Result<ChunkedDigest> StageFile() {
    const FileToWrite& file = files_[file_];
    offset_ = 0;
    KEEL_RETURN_IF_ERROR(Append(std::as_bytes(std::span(file.header)), nullptr));
    for (piece_ = 0; piece_ < file.pieces.size(); ++piece_) {
      const WritePiece& piece = file.pieces[piece_];
      KEEL_RETURN_IF_ERROR(
          ForEachRun(piece, [&](std::span<const std::byte> run) { return Append(run, &piece); }));
      PieceIsStaged();
    }
    if (slot_ != kNoBuffer && fill_ > 0) KEEL_RETURN_IF_ERROR(FlushSlot());
    ChunkedDigest digest = hasher_.Finish();
    if (digest.size != states_[file_].size) {
      return Status(StatusCode::kInternal, fmt::format("staged {} bytes of a file planned with {}",
                                                       digest.size, states_[file_].size));
    }
    KEEL_RETURN_IF_ERROR(CompleteFile());
    return digest;
  }

  Status Append(std::span<const std::byte> bytes, const WritePiece* piece) {
    if (piece != nullptr && piece->stable && owner_.backend_ == IoBackend::kBuffered &&
        static_cast<int64_t>(bytes.size()) >= kWriteInPlace) {
      return AppendInPlace(bytes);
    }
    while (!bytes.empty()) {
      if (slot_ == kNoBuffer) KEEL_RETURN_IF_ERROR(Acquire());
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
    if (slot_ != kNoBuffer && fill_ > 0) KEEL_RETURN_IF_ERROR(FlushSlot());
    while (!bytes.empty()) {
      const auto part =
          bytes.first(std::min(bytes.size(), static_cast<size_t>(owner_.chunk_bytes_)));
      hasher_.Update(part);
      KEEL_RETURN_IF_ERROR(Submit({file_, offset_, part, kNoBuffer, piece_}));
      offset_ += static_cast<int64_t>(part.size());
      bytes = bytes.subspan(part.size());
    }
    return Status::Ok();
  }

  Status FlushSlot() {
    HashCopied();
    int64_t size = fill_;
    if (owner_.backend_ == IoBackend::kDirect) {
      size = RoundUp(fill_);  // only the last one needs it; the file is cut to its size afterwards
      std::memset(slot() + fill_, 0, static_cast<size_t>(size - fill_));
    }
    const Item item{file_, offset_, std::span(slot(), static_cast<size_t>(size)), slot_, kNoPiece};
    offset_ += fill_;
    slot_ = kNoBuffer;
    return Submit(item);
  }

  Status Acquire() {
    if (hooks_.interrupted) KEEL_RETURN_IF_ERROR(hooks_.interrupted());
    std::unique_lock lock(mutex_);
    while (free_.empty() && failure_.ok()) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      if (hooks_.interrupted && free_.empty()) {
        lock.unlock();
        KEEL_RETURN_IF_ERROR(hooks_.interrupted());
        lock.lock();
      }
    }
    KEEL_RETURN_IF_ERROR(failure_);
    slot_ = free_.back();
    free_.pop_back();
    fill_ = 0;
    hashed_ = 0;
    return Status::Ok();
  }

  Status Submit(const Item& item) {
    {
      std::unique_lock lock(mutex_);
      // What is written from where it lies takes no slot; the queue must not grow without bound.
      changed_.wait(lock, [&] {
        return !threaded_ || item.piece == kNoPiece || queue_.size() < kQueueLimit ||
               !failure_.ok();
      });
      KEEL_RETURN_IF_ERROR(failure_);
      FileState& state = states_[item.file];
      ++state.pending;
      if (item.piece != kNoPiece) ++state.unwritten[item.piece];
      queue_.push_back(item);
    }
    changed_.notify_all();
    if (threaded_) return Status::Ok();
    WriteQueued();
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  // The producer is done with the piece: released now, or with its last write.
  void PieceIsStaged() {
    if (!hooks_.released) return;
    {
      const std::lock_guard lock(mutex_);
      int& unwritten = states_[file_].unwritten[piece_];
      if (unwritten > 0) {
        unwritten = -unwritten;  // negative: whoever writes the last one releases
        return;
      }
    }
    hooks_.released(file_, piece_);
  }

  // An item without data ends the file: whoever handles the last item of it syncs and closes it.
  Status CompleteFile() {
    {
      const std::lock_guard lock(mutex_);
      states_[file_].complete = true;
    }
    return Submit({file_, offset_, {}, kNoBuffer, kNoPiece});
  }

  void Fail(Status status) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = std::move(status);
      changed_.notify_all();
    }
    if (hooks_.gave_up) hooks_.gave_up();
  }

  // --- The writers ----------------------------------------------------------------------------

  Result<File*> Opened(size_t index) {
    FileState& state = states_[index];
    const std::lock_guard lock(state.opening);
    if (state.file == nullptr) {
      KEEL_FAIL_POINT("writer.create");
      CreateOptions options;
      options.direct = owner_.backend_ == IoBackend::kDirect;
      options.preallocate = state.size;
      KEEL_ASSIGN_OR_RETURN(state.file,
                            owner_.fs_.Create(directory_ + files_[index].path, options));
    }
    return state.file.get();
  }

  Status WriteItem(const Item& item) {
    KEEL_ASSIGN_OR_RETURN(File* const file, Opened(item.file));
    if (item.data.empty()) return FailPoint("writer.last");
    KEEL_FAIL_POINT("writer.write");
    return file->WriteAt(item.offset, item.data);
  }

  Status FinishFile(size_t index) {
    KEEL_ASSIGN_OR_RETURN(File* const file, Opened(index));
    const int64_t size = states_[index].size;
    if (owner_.backend_ == IoBackend::kDirect && size % kAlignment != 0) {
      KEEL_RETURN_IF_ERROR(file->Truncate(size));
    }
    Stopwatch watch;
    KEEL_FAIL_POINT("writer.fsync");
    KEEL_RETURN_IF_ERROR(file->Sync());
    KEEL_RETURN_IF_ERROR(file->Close());
    KEEL_FAIL_POINT("writer.closed");
    const std::lock_guard lock(mutex_);
    fsync_s_ += watch.Elapsed();
    return Status::Ok();
  }

  // The front of the queue; `lock` is held at the call and afterwards.
  void WriteFront(std::unique_lock<std::mutex>& lock) {
    const Item item = queue_.front();
    queue_.pop_front();
    Status status;
    const bool failed = !failure_.ok();
    if (!failed) {
      lock.unlock();
      try {
        status = WriteItem(item);
      } catch (const std::exception& e) {
        status = Status(StatusCode::kInternal, e.what());
      }
      lock.lock();
    }
    if (item.slot != kNoBuffer) free_.push_back(item.slot);
    FileState& state = states_[item.file];
    const bool finishes = --state.pending == 0 && state.complete;
    bool releases = false;
    if (item.piece != kNoPiece) {
      int& unwritten = state.unwritten[item.piece];
      if (unwritten > 0) {
        --unwritten;
      } else {
        releases = ++unwritten == 0;
      }
    }
    changed_.notify_all();
    lock.unlock();
    if (failed) return lock.lock();
    if (status.ok() && releases && hooks_.released) hooks_.released(item.file, item.piece);
    if (status.ok() && finishes) {
      try {
        status = FinishFile(item.file);
      } catch (const std::exception& e) {
        status = Status(StatusCode::kInternal, e.what());
      }
    }
    if (!status.ok()) Fail(std::move(status));
    lock.lock();
  }

  void WriteQueued() {
    std::unique_lock lock(mutex_);
    while (!queue_.empty()) WriteFront(lock);
  }

  void Drain() {
    std::unique_lock lock(mutex_);
    for (;;) {
      // Without a directory nothing can be written; after a failure nothing will.
      changed_.wait(
          lock, [&] { return queue_.empty() ? done_ : writing_.has_value() || !failure_.ok(); });
      if (queue_.empty()) return;
      WriteFront(lock);
    }
  }

  void Join() {
    if (stager_.joinable()) stager_.join();
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : writers_) thread.join();
    writers_.clear();
  }

  SnapshotWriter& owner_;
  const std::vector<FileToWrite> files_;
  const WriteHooks hooks_;
  bool threaded_ = true;  // there are writers beside the producer

  // The producer's.
  ChunkHasher hasher_;
  size_t file_ = 0;
  size_t piece_ = 0;
  int64_t offset_ = 0;    // of the next write
  int slot_ = kNoBuffer;  // being filled
  int64_t fill_ = 0;      // bytes in it
  int64_t hashed_ = 0;    // of these, already digested
  std::vector<ChunkedDigest> digests_;
  double staged_s_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FileState> states_;
  std::deque<Item> queue_;
  std::vector<int> free_;
  Status failure_;
  double fsync_s_ = 0;
  bool done_ = false;
  std::string directory_;             // with a slash at its end, once it is known
  std::optional<Stopwatch> writing_;  // since then
  // Last: they use all of the above.
  std::vector<std::thread> writers_;
  std::thread stager_;
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
  job_ = std::make_unique<Job>(*this, std::move(files), std::move(hooks));
  return job_->StartStaging();
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

IoBackend MeasureBackend(FileSystem& fs, std::string_view directory, int64_t bytes) {
  const PageMemory buffer = AllocatePages(RoundUp(bytes));
  if (buffer == nullptr) return IoBackend::kBuffered;
  std::memset(buffer.get(), 0, static_cast<size_t>(RoundUp(bytes)));
  WritePiece piece;
  piece.size = Dims{RoundUp(bytes)};
  piece.view = {buffer.get(), Dims{1}};
  piece.stable = true;
  double best[2] = {0, 0};
  for (int round = 0; round < 2; ++round) {
    for (const IoBackend backend : {IoBackend::kDirect, IoBackend::kBuffered}) {
      SnapshotWriter writer(fs, backend, int64_t{4} << 20);
      const std::string in(directory);
      const std::string name = fmt::format(".io-probe-{}-{}", IoBackendName(backend), round);
      WriteTimes times;
      const bool ok = writer.Write(in, {{name, "", {piece}}}, {}, &times).ok();
      (void)fs.Remove(in + "/" + name);
      if (!ok) return IoBackend::kBuffered;
      double& seconds = best[backend == IoBackend::kDirect ? 1 : 0];
      const double elapsed = times.written_s + times.fsync_s;
      seconds = seconds == 0 ? elapsed : std::min(seconds, elapsed);
    }
  }
  return best[1] < best[0] ? IoBackend::kDirect : IoBackend::kBuffered;
}

}  // namespace keel::checkpoint
