// FileWriters: the writing half of a save. Takes pieces of memory from one producer, writes them
// with threads of its own, and syncs and closes each file behind its last piece.
//
// Made for one save. The producer is one thread; all methods are its, but Fail is anyone's. The
// first failure ends the writing: what is still handed over is dropped, and its slots come back.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/save/io_backend.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/span_recorder.h"
#include "common/status.h"

namespace keel::checkpoint {

struct WriteHooks {
  // Returns when the memory of this piece may be read. Called before that, from the thread that
  // copies; an error ends the writing.
  std::function<Status(size_t file, size_t piece)> arrived;
  // The memory of this piece is not needed any more. Called from any of the threads.
  std::function<void(size_t file, size_t piece)> released;
  // The writing has failed, and nothing reads any piece any more, or will. Once, from any of the
  // threads.
  std::function<void()> gave_up;
  // Asked every few megabytes; a status that is not ok ends the writing with it.
  std::function<Status()> interrupted;
  // The disk has answered: a write, or the end of a file, is over. From any of the threads.
  std::function<void()> moved;
  // Where the copies and writes of `step` are recorded, those of the thread that copies as of
  // `copier`. May be null, outlives the writing.
  SpanRecorder* spans = nullptr;
  SpanLane copier = SpanLane::kSaver;
  int64_t step = -1;

  SpanDetails SpansOf(SpanLane lane) const { return {.lane = lane, .step = step}; }
};

class FileWriters {
 public:
  static constexpr int kNoSlot = -1;
  static constexpr size_t kNoPiece = ~size_t{0};

  struct Target {
    std::string path;  // relative to the directory that is given later
    int64_t size = 0;
    size_t pieces = 0;
  };
  struct Item {
    size_t file = 0;
    int64_t offset = 0;
    std::span<const std::byte> data;  // stays as it is until it is written
    int slot = kNoSlot;               // that is free again then
    size_t piece = kNoPiece;          // that is written from where it lies, and released then
  };

  // `fs` and `hooks` outlive this. `slots`: how many there are to be had from AcquireSlot.
  FileWriters(FileSystem& fs, IoBackend backend, std::vector<Target> targets, size_t slots,
              const WriteHooks& hooks);
  ~FileWriters();  // Join

  // One more writer; without any, Submit writes before it returns.
  void StartThread();  // throws std::system_error
  bool threaded() const { return !threads_.empty(); }

  // Takes the directory of the files. Until then nothing is written.
  void LetWrite(const std::string& directory);
  // Waits for a free slot.
  Result<int> AcquireSlot();
  Status Submit(const Item& item);
  // All of the piece has been submitted: it is released now, or with its last write.
  void PieceIsStaged(size_t file, size_t piece);
  // Nothing of the file follows.
  Status CompleteFile(size_t file);
  // The producer reads no piece any more, after its last one or a failure.
  void ProducerIsDone();

  void Fail(Status status);  // no more than the first one counts
  // Waits until all that was submitted is written, or dropped. Then `failure` says which.
  void Join();
  const Status& failure() const { return failure_; }
  double fsync_s() const { return fsync_s_; }               // after Join
  double elapsed_s() const { return writing_->Elapsed(); }  // since LetWrite

 private:
  // A file on its way. The mutex of the writers guards the counters, `opening` the rest.
  struct State {
    std::mutex opening;
    std::unique_ptr<File> file;
    int64_t pending = 0;  // items submitted and not written
    bool complete = false;
    std::vector<int> unwritten;  // per piece, items of it that are written from where it lies
  };
  // What one thread has under way.
  class Lane;

  Result<File*> Opened(size_t file);
  // Says whether the write is under way; otherwise it is over.
  Result<bool> Begin(const Item& item, Lane* lane);
  Status FinishFile(size_t file, const Lane& lane);
  void ItemIsOver(const Item& item, const Lane& lane, Status status);
  void OneReadsLess();
  void GiveUpWhenNobodyReads();
  void Step(Lane* lane, std::unique_lock<std::mutex>* lock);
  void WriteQueued();
  void Work(SpanLane spans);

  FileSystem& fs_;
  const IoBackend backend_;
  const std::vector<Target> targets_;
  const WriteHooks& hooks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<State> states_;  // by file
  std::deque<Item> queue_;
  std::vector<int> free_;
  Status failure_;
  // Threads that may be reading pieces: who writes one in place, and the producer, also before it
  // has begun.
  int reading_ = 1;
  bool gave_up_ = false;
  double fsync_s_ = 0;
  bool done_ = false;
  std::string directory_;             // with a slash at its end, once it is known
  std::optional<Stopwatch> writing_;  // since then
  std::unique_ptr<Lane> own_lane_;    // of the producer, when there are no threads
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace keel::checkpoint
