#include "checkpoint/save/file_writers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/fail_point.h"
#include "common/guarded.h"

namespace keel::checkpoint {
namespace {

constexpr size_t kQueueLimit = 16;
constexpr int64_t kBlock = 4096;

}  // namespace

class FileWriters::Lane {
 public:
  explicit Lane(SpanLane of) : spans(of) {}

  const SpanLane spans;  // of this thread
  bool idle() const { return used_ == 0; }
  bool full() const { return used_ == items_.size(); }

  Status Begin(FileSystem& fs, File& file, const Item& item) {
    if (queue_ == nullptr) {
      KEEL_ASSIGN_OR_RETURN(queue_, fs.MakeWriteQueue(static_cast<int>(items_.size())));
    }
    const auto place = std::find(items_.begin(), items_.end(), std::nullopt) - items_.begin();
    queue_->Begin(static_cast<uint64_t>(place), file, item.offset, item.data);
    items_[static_cast<size_t>(place)] = item;
    ++used_;
    return Status::Ok();
  }

  // Waits for a write to be over; its failure, or why there is no waiting, in `status`.
  Item Wait(Status* status) {
    size_t place = 0;
    while (!items_[place]) ++place;
    *status = Guarded([&] {
      const WriteQueue::Done done = queue_->Wait();
      place = done.id;
      return done.status;
    });
    --used_;
    return *std::exchange(items_[place], std::nullopt);
  }

 private:
  std::unique_ptr<WriteQueue> queue_;
  std::array<std::optional<Item>, kWritesUnderWay> items_;
  size_t used_ = 0;
};

FileWriters::FileWriters(FileSystem& fs, IoBackend backend, std::vector<Target> targets,
                         size_t slots, const WriteHooks& hooks)
    : fs_(fs),
      backend_(backend),
      targets_(std::move(targets)),
      hooks_(hooks),
      own_lane_(std::make_unique<Lane>(hooks.copier)) {
  for (size_t i = 0; i < slots; ++i) free_.push_back(static_cast<int>(i));
  for (const Target& target : targets_) {
    states_.emplace_back();
    states_.back().unwritten.assign(target.pieces, 0);
  }
}

FileWriters::~FileWriters() { Join(); }

void FileWriters::StartThread() {
  threads_.emplace_back([this, lane = WriterLane(threads_.size())] { Work(lane); });
}

void FileWriters::LetWrite(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  directory_ = directory + "/";
  writing_.emplace();
  changed_.notify_all();
}

// --- The producer's side ------------------------------------------------------------------------

Result<int> FileWriters::AcquireSlot() {
  if (hooks_.interrupted) KEEL_RETURN_IF_ERROR(hooks_.interrupted());
  std::unique_lock lock(mutex_);
  const bool waits = free_.empty() && failure_.ok();
  ScopedSpan span(waits ? hooks_.spans : nullptr, "wait for writers",
                  hooks_.SpansOf(hooks_.copier));
  while (free_.empty() && failure_.ok()) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    if (hooks_.interrupted && free_.empty()) {
      lock.unlock();
      KEEL_RETURN_IF_ERROR(hooks_.interrupted());
      lock.lock();
    }
  }
  KEEL_RETURN_IF_ERROR(failure_);
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

Status FileWriters::Submit(const Item& item) {
  {
    std::unique_lock lock(mutex_);
    // What is written from where it lies takes no slot; the queue must not grow without bound.
    changed_.wait(lock, [&] {
      return !threaded() || item.piece == kNoPiece || queue_.size() < kQueueLimit || !failure_.ok();
    });
    KEEL_RETURN_IF_ERROR(failure_);
    State& state = states_[item.file];
    ++state.pending;
    // With its own item and not before: else the item ahead of it may end the file, and it again.
    if (item.data.empty()) state.complete = true;
    if (item.piece != kNoPiece) ++state.unwritten[item.piece];
    queue_.push_back(item);
  }
  changed_.notify_all();
  if (threaded()) return Status::Ok();
  WriteQueued();
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FileWriters::PieceIsStaged(size_t file, size_t piece) {
  if (!hooks_.released) return;
  {
    const std::lock_guard lock(mutex_);
    int& unwritten = states_[file].unwritten[piece];
    if (unwritten > 0) {
      unwritten = -unwritten;  // negative: whoever writes the last one releases
      return;
    }
  }
  hooks_.released(file, piece);
}

// An item without data ends the file: whoever handles the last item of it syncs and closes it.
Status FileWriters::CompleteFile(size_t file) {
  return Submit({file, targets_[file].size, {}, kNoSlot, kNoPiece});
}

void FileWriters::Fail(Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(status);
    changed_.notify_all();
  }
  GiveUpWhenNobodyReads();
}

void FileWriters::ProducerIsDone() { OneReadsLess(); }

void FileWriters::OneReadsLess() {
  {
    const std::lock_guard lock(mutex_);
    --reading_;
  }
  GiveUpWhenNobodyReads();
}

// Whoever owns the memory may free it then.
void FileWriters::GiveUpWhenNobodyReads() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok() || reading_ > 0 || gave_up_) return;
    gave_up_ = true;
  }
  if (hooks_.gave_up) hooks_.gave_up();
}

void FileWriters::Join() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// --- The writers --------------------------------------------------------------------------------

Result<File*> FileWriters::Opened(size_t file) {
  State& state = states_[file];
  const std::lock_guard lock(state.opening);
  if (state.file == nullptr) {
    KEEL_FAIL_POINT("writer.create");
    CreateOptions options;
    options.direct = WritesBlocks(backend_);
    options.preallocate = targets_[file].size;
    KEEL_ASSIGN_OR_RETURN(state.file, fs_.Create(directory_ + targets_[file].path, options));
  }
  return state.file.get();
}

Result<bool> FileWriters::Begin(const Item& item, Lane* lane) {
  // Of a queue the disk's time stands in Wait.
  const ScopedSpan span(item.data.empty() ? nullptr : hooks_.spans, "write",
                        hooks_.SpansOf(lane->spans));
  KEEL_ASSIGN_OR_RETURN(File* const file, Opened(item.file));
  if (item.data.empty()) {
    KEEL_FAIL_POINT("writer.last");
    return false;
  }
  KEEL_FAIL_POINT("writer.write");
  if (backend_ == IoBackend::kIoUring) {
    KEEL_RETURN_IF_ERROR(lane->Begin(fs_, *file, item));
    return true;
  }
  KEEL_RETURN_IF_ERROR(file->WriteAt(item.offset, item.data));
  return false;
}

Status FileWriters::FinishFile(size_t index, const Lane& lane) {
  const ScopedSpan span(hooks_.spans, "sync", hooks_.SpansOf(lane.spans));
  KEEL_ASSIGN_OR_RETURN(File* const file, Opened(index));
  const int64_t size = targets_[index].size;
  if (WritesBlocks(backend_) && size % kBlock != 0) {
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

// Written, or not at all, or dropped.
void FileWriters::ItemIsOver(const Item& item, const Lane& lane, Status status) {
  bool finishes = false;
  bool releases = false;
  {
    const std::lock_guard lock(mutex_);
    if (item.slot != kNoSlot) free_.push_back(item.slot);
    State& state = states_[item.file];
    finishes = --state.pending == 0 && state.complete && failure_.ok();
    if (item.piece != kNoPiece) {
      int& unwritten = state.unwritten[item.piece];
      if (unwritten > 0) {
        --unwritten;
      } else {
        releases = ++unwritten == 0 && failure_.ok();
      }
    }
    changed_.notify_all();
  }
  if (status.ok() && releases && hooks_.released) hooks_.released(item.file, item.piece);
  if (status.ok() && finishes) status = Guarded([&] { return FinishFile(item.file, lane); });
  if (hooks_.moved) hooks_.moved();
  if (!status.ok()) Fail(std::move(status));
}

// Begins what is at the front of the queue; or, when there is nothing, or enough under way, waits
// for a write to be over. `lock` is held at the call and afterwards.
void FileWriters::Step(Lane* lane, std::unique_lock<std::mutex>* lock) {
  Item item;
  Status status;
  bool under_way = false;
  bool reads = false;
  if (!queue_.empty() && !lane->full()) {
    item = queue_.front();
    queue_.pop_front();
    const bool failed = !failure_.ok();
    reads = !failed && item.piece != kNoPiece;
    if (reads) ++reading_;
    lock->unlock();
    if (!failed) {
      status = Guarded([&]() -> Status {
        if (hooks_.interrupted) KEEL_RETURN_IF_ERROR(hooks_.interrupted());
        KEEL_ASSIGN_OR_RETURN(under_way, Begin(item, lane));
        return Status::Ok();
      });
    }
  } else {
    lock->unlock();
    const ScopedSpan span(hooks_.spans, "wait for a write", hooks_.SpansOf(lane->spans));
    item = lane->Wait(&status);
  }
  if (reads) OneReadsLess();
  if (!under_way) ItemIsOver(item, *lane, std::move(status));
  lock->lock();
}

void FileWriters::WriteQueued() {
  std::unique_lock lock(mutex_);
  while (!queue_.empty() || !own_lane_->idle()) Step(own_lane_.get(), &lock);
}

void FileWriters::Work(SpanLane spans) {
  Lane lane(spans);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (lane.idle()) {
      // Without a directory nothing can be written; after a failure nothing will.
      changed_.wait(
          lock, [&] { return queue_.empty() ? done_ : writing_.has_value() || !failure_.ok(); });
      if (queue_.empty()) return;
    }
    Step(&lane, &lock);
  }
}

}  // namespace keel::checkpoint
