// Snapshot: the state of one step while it is being saved.
//
// Knows every range of live memory that the save may read, holds the fence over them, and gives
// each free as it is copied or written. A sample of every range is digested when the snapshot is
// taken and again when the range is given free: a trainer that wrote without asking the fence is
// found out, and the save fails instead of mixing two steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/save/save_planner.h"
#include "checkpoint/save/snapshot_writer.h"
#include "checkpoint/save/source_fence.h"

namespace keel::checkpoint {

class Snapshot {
 public:
  // With `may_change` the state may be overwritten as soon as `fence` lets it; without, it stays as
  // it is until the save has ended, and the fence is not used. Both must outlive this; the memory
  // behind the tables must too, or until the fence has let it go.
  Snapshot(const SaveRequest& request, bool may_change, SourceFence& fence);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const SaveRequest& request() const { return request_; }
  bool may_change() const { return may_change_; }

  // The files that the plan lets `rank` write, with the memory to write.
  std::vector<FileToWrite> FilesOf(const SavePlan& plan, int rank);
  // After FilesOf: gives free whatever no file of this rank needs, once it has taken the digest of
  // what of that is compared with other ranks' copies.
  Status ReleaseRest();
  // Returns when the values of a piece of a file of FilesOf are there. From the thread that is
  // going to read it.
  Status Arrived(size_t file, size_t piece);
  // The piece is copied, or written. Any thread.
  void Released(size_t file, size_t piece);
  // No piece is read any more, or will be. Any thread.
  void ReleasePieces();
  // Nothing is read any more.
  void ReleaseAll() {
    if (may_change_) fence_.ReleaseAll();
  }

  // This rank's part of the digest of request().digest_role, of what was given free so far.
  uint64_t digest() const { return digest_.load(); }
  // The digests of this rank's copies of what several have (RoleState::shared), once all is given
  // free.
  std::vector<CopyDigest> CopyDigests() const;

  // Not ok when a sample changed before its range was given free; names the tensor.
  Status CheckUnchanged() const;

  // Asks the save to end as soon as it can, with `why`, unless it is already being published. The
  // first reason counts. Any thread.
  void Cancel(Status why);
  Status cancelled() const;  // ok, or why

 private:
  struct Range {
    int role = 0;
    bool optimizer = false;
    int shard = 0;  // of the role's table
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    uint64_t sample = 0;
    bool sampled = false;  // when the values are there
    bool needed = false;
    bool compared = false;  // with other ranks' copies
    uint64_t values = 0;    // then: their digest, of whoever gives the range free
  };
  // What one file of this rank takes of a range: all of its box, or the rows that other holders of
  // it do not write.
  struct Piece {
    size_t range = 0;
    Box box;
  };
  const ShardTable& TableOf(const Range& range) const;
  const Shard& ShardOf(const Range& range) const;
  const TensorInfo& TensorOf(const Range& range) const;
  Status Arrived(Range* range);
  // Nobody reads the range any more, after what is compared of it.
  void Released(size_t index);
  void AddToDigest(const Piece& piece);
  static uint64_t SampleOf(const Range& range);
  const RoleState& RoleOf(const Range& range) const;

  const SaveRequest& request_;
  const bool may_change_;
  SourceFence& fence_;
  std::vector<Range> ranges_;
  std::vector<size_t> first_range_;  // per role, two: of the model's table, of the optimizer's
  std::vector<std::vector<Piece>> pieces_;  // per file
  std::atomic<size_t> changed_;  // a range whose sample changed; ranges_.size() when none did
  std::atomic<uint64_t> digest_{0};
  std::atomic<bool> cancelled_{false};
  mutable std::mutex why_mutex_;
  Status why_cancelled_;
};

}  // namespace keel::checkpoint
