#include "checkpoint/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/page_memory.h"
#include "common/clock.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kAlignment = 4096;
// Source runs from this size on are hashed where they lie; smaller ones after they are gathered.
constexpr int64_t kHashInPlace = 4096;
// Blocks in which hashing and copying alternate, so that the copy finds its source in the cache.
constexpr int64_t kFuse = 128 << 10;
// Runs from this size on are written from where they lie, by the buffered back-end.
constexpr int64_t kWriteInPlace = 1 << 20;
constexpr int kNoBuffer = -1;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

PageMemory AllocateTouched(int64_t bytes) {
  PageMemory memory = AllocatePages(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));  // faults the pages in, once
  return memory;
}

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

struct ShardWriter::Ring {
  std::vector<PageMemory> buffers;
};

// One file being written: the producer's side on the calling thread, the queue, the writer thread.
class ShardWriter::Stream {
 public:
  Stream(ShardWriter& owner, File& file, int64_t total)
      : owner_(owner), file_(file), hasher_(owner.chunk_bytes_), total_(total) {
    for (size_t i = 0; i < owner.ring_->buffers.size(); ++i) free_.push_back(static_cast<int>(i));
    // A file of a few buffers is not worth a thread.
    if (total > 2 * owner.chunk_bytes_) {
      try {
        writer_ = std::thread([this] { Drain(); });
      } catch (const std::system_error&) {
        // Writes happen on the calling thread then.
      }
    }
  }

  ~Stream() { Join(); }

  Status Append(std::span<const std::byte> bytes) {
    if (owner_.backend_ == IoBackend::kBuffered &&
        static_cast<int64_t>(bytes.size()) >= kWriteInPlace) {
      return AppendInPlace(bytes);
    }
    while (!bytes.empty()) {
      if (current_ == kNoBuffer) KEEL_RETURN_IF_ERROR(Acquire());
      const size_t take = static_cast<size_t>(std::min<int64_t>(
          {static_cast<int64_t>(bytes.size()), owner_.chunk_bytes_ - fill_, kFuse}));
      const std::span<const std::byte> block = bytes.first(take);
      if (static_cast<int64_t>(take) >= kHashInPlace) {
        HashGathered();
        hasher_.Update(block);
        std::memcpy(buffer() + fill_, block.data(), take);
        fill_ += static_cast<int64_t>(take);
        hashed_ = fill_;
      } else {
        std::memcpy(buffer() + fill_, block.data(), take);
        fill_ += static_cast<int64_t>(take);
      }
      bytes = bytes.subspan(take);
      if (fill_ == owner_.chunk_bytes_) KEEL_RETURN_IF_ERROR(FlushBuffer());
    }
    return Status::Ok();
  }

  // Writes what is left and waits for the writer thread.
  Result<ChunkedDigest> Finish() {
    if (current_ != kNoBuffer && fill_ > 0) {
      KEEL_RETURN_IF_ERROR(FlushBuffer());
    }
    Join();
    KEEL_RETURN_IF_ERROR(failure_);
    ChunkedDigest digest = hasher_.Finish();
    if (digest.size != total_) {
      return Status(StatusCode::kInternal,
                    fmt::format("wrote {} bytes of a file planned with {}", digest.size, total_));
    }
    return digest;
  }

 private:
  struct Item {
    int64_t offset = 0;
    std::span<const std::byte> data;
    int buffer = kNoBuffer;
  };

  std::byte* buffer() { return owner_.ring_->buffers[static_cast<size_t>(current_)].get(); }

  void HashGathered() {
    hasher_.Update(std::span(buffer() + hashed_, static_cast<size_t>(fill_ - hashed_)));
    hashed_ = fill_;
  }

  Status AppendInPlace(std::span<const std::byte> bytes) {
    if (current_ != kNoBuffer && fill_ > 0) KEEL_RETURN_IF_ERROR(FlushBuffer());
    while (!bytes.empty()) {
      const auto part =
          bytes.first(std::min(bytes.size(), static_cast<size_t>(owner_.chunk_bytes_)));
      hasher_.Update(part);
      KEEL_RETURN_IF_ERROR(Submit({offset_, part, kNoBuffer}));
      offset_ += static_cast<int64_t>(part.size());
      bytes = bytes.subspan(part.size());
    }
    return Status::Ok();
  }

  Status FlushBuffer() {
    HashGathered();
    int64_t size = fill_;
    if (owner_.backend_ == IoBackend::kDirect) {
      size = RoundUp(fill_);  // only the last one needs it; the file is cut to its size afterwards
      std::memset(buffer() + fill_, 0, static_cast<size_t>(size - fill_));
    }
    const Item item{offset_, std::span(buffer(), static_cast<size_t>(size)), current_};
    offset_ += fill_;
    current_ = kNoBuffer;
    return Submit(item);
  }

  Status Acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty() || !failure_.ok(); });
    KEEL_RETURN_IF_ERROR(failure_);
    current_ = free_.back();
    free_.pop_back();
    fill_ = 0;
    hashed_ = 0;
    return Status::Ok();
  }

  Status Submit(const Item& item) {
    if (!writer_.joinable()) {
      const Status status = file_.WriteAt(item.offset, item.data);
      if (item.buffer != kNoBuffer) free_.push_back(item.buffer);
      if (!status.ok()) failure_ = status;
      return status;
    }
    std::unique_lock lock(mutex_);
    const size_t limit = owner_.ring_->buffers.size();
    changed_.wait(lock, [&] { return queue_.size() < limit || !failure_.ok(); });
    KEEL_RETURN_IF_ERROR(failure_);
    queue_.push_back(item);
    lock.unlock();
    changed_.notify_all();
    return Status::Ok();
  }

  void Drain() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !queue_.empty() || done_; });
      if (queue_.empty()) return;
      const Item item = queue_.front();
      lock.unlock();
      Status status;
      try {
        status = file_.WriteAt(item.offset, item.data);
      } catch (const std::exception& e) {
        status = Status(StatusCode::kInternal, e.what());
      }
      lock.lock();
      queue_.pop_front();
      if (item.buffer != kNoBuffer) free_.push_back(item.buffer);
      if (!status.ok() && failure_.ok()) {
        failure_ = status;
        queue_.clear();
      }
      changed_.notify_all();
      if (!failure_.ok()) return;
    }
  }

  void Join() {
    if (!writer_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }

  ShardWriter& owner_;
  File& file_;
  ChunkHasher hasher_;
  const int64_t total_;
  int64_t offset_ = 0;       // of the next write
  int current_ = kNoBuffer;  // buffer being filled
  int64_t fill_ = 0;         // bytes in it
  int64_t hashed_ = 0;       // of these, already digested

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;  // the front one is being written
  std::vector<int> free_;
  Status failure_;
  bool done_ = false;
  std::thread writer_;  // last: uses all of the above
};

ShardWriter::ShardWriter(FileSystem& fs, IoBackend backend, int64_t chunk_bytes, int ring)
    : fs_(fs),
      backend_(backend),
      chunk_bytes_(RoundUp(chunk_bytes)),
      ring_(std::make_unique<Ring>()) {
  for (int i = 0; i < std::max(2, ring); ++i)
    ring_->buffers.push_back(AllocateTouched(chunk_bytes_));
}

ShardWriter::~ShardWriter() = default;

Result<ChunkedDigest> ShardWriter::Write(std::string_view path, std::string_view header,
                                         std::span<const WritePiece> pieces, WriteTimes* times) {
  Stopwatch watch;
  int64_t total = static_cast<int64_t>(header.size());
  for (const WritePiece& piece : pieces) total += piece.bytes();
  CreateOptions options;
  options.direct = backend_ == IoBackend::kDirect;
  options.preallocate = total;
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_.Create(path, options));
  ChunkedDigest digest;
  {
    Stream stream(*this, *file, total);
    KEEL_RETURN_IF_ERROR(stream.Append(std::as_bytes(std::span(header))));
    for (const WritePiece& piece : pieces) {
      KEEL_RETURN_IF_ERROR(
          ForEachRun(piece, [&](std::span<const std::byte> run) { return stream.Append(run); }));
    }
    KEEL_ASSIGN_OR_RETURN(digest, stream.Finish());
  }
  if (backend_ == IoBackend::kDirect && total % kAlignment != 0) {
    KEEL_RETURN_IF_ERROR(file->Truncate(total));
  }
  times->write_s += watch.Lap();
  KEEL_RETURN_IF_ERROR(file->Sync());
  KEEL_RETURN_IF_ERROR(file->Close());
  times->fsync_s += watch.Lap();
  return digest;
}

IoBackend MeasureBackend(FileSystem& fs, std::string_view directory, int64_t bytes) {
  const PageMemory buffer = AllocateTouched(RoundUp(bytes));
  const auto* data = buffer.get();
  WritePiece piece;
  piece.size = Dims{RoundUp(bytes)};
  piece.view = {const_cast<std::byte*>(data), Dims{1}};
  double best[2] = {0, 0};
  for (int round = 0; round < 2; ++round) {
    for (const IoBackend backend : {IoBackend::kDirect, IoBackend::kBuffered}) {
      ShardWriter writer(fs, backend, int64_t{4} << 20, 2);
      const std::string path =
          fmt::format("{}/.io-probe-{}-{}", directory, IoBackendName(backend), round);
      WriteTimes times;
      const bool ok = writer.Write(path, "", std::span(&piece, 1), &times).ok();
      (void)fs.Remove(path);
      if (!ok) return IoBackend::kBuffered;
      double& seconds = best[backend == IoBackend::kDirect ? 1 : 0];
      const double elapsed = times.write_s + times.fsync_s;
      seconds = seconds == 0 ? elapsed : std::min(seconds, elapsed);
    }
  }
  return best[1] < best[0] ? IoBackend::kDirect : IoBackend::kBuffered;
}

}  // namespace keel::checkpoint
