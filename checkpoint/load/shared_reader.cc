#include "checkpoint/load/shared_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "common/guarded.h"

// How ranks read together:
//
// Every rank has two lists of chunks: those that it reads and hands on (`given`) and those that
// only it needs (`local`). A few workers do, in this order, whatever there is to do: take a block
// that a near peer has published, read the next given chunk, read the next local one. The order is
// what keeps the ranks going. Blocks of peers come first because their slots are few, and a peer
// without a free slot reads nothing; given chunks come before local ones because somebody waits for
// them.
//
// A given chunk is read block by block into a slot of the ring. Each block is digested, copied to
// this rank's own places and published; near peers copy what they need out of the slot, and count
// it as taken. The last block is published only after the digest of the whole chunk was found
// right, and every peer that needs any of the chunk waits for that one, whether it needs its bytes
// or not.
//
// Two ranks can wait for each other: each has filled its slots and waits for the other to take
// some. So whoever waits for a slot takes blocks meanwhile (AcquireSlot), and so does whoever
// reads, between two of its blocks (TakeBlocks).
//
// For far peers a chunk is kept whole until its round; the calling thread does the rounds while the
// workers read ahead by as many chunks as are kept.
//
// The end. A failure, here or at a peer, sets `stop_`; the ring tells near peers, a round's flag
// tells far ones. What is copied by then is of no use, and nobody needs to undo it: the caller
// votes, and throws the attempt away. Near peers are watched by counters in shared memory, since
// nothing there can be waited on: one that stops beating while something is wanted of it is lost
// after the deadline.
namespace keel::checkpoint {
namespace {

using std::chrono::steady_clock;

// Announced to the disk ahead of being read.
constexpr size_t kPrefetchChunks = 4;
// Blocks that wait for peers, beside those that are being read: few, so that they stay in the
// caches.
constexpr int64_t kSpareSlots = 6;
// What a rank says of peers' blocks when it wants no more.
constexpr int64_t kAll = BlockRing::kMostBlocks;
// The counters of peers can only be looked at, not waited for. Most waits are short: at first the
// core is given to who wants it, then there are pauses between the looks.
constexpr int kYields = 100;
constexpr std::chrono::microseconds kShortestPause{50};
constexpr std::chrono::microseconds kLongestPause{2'000};
constexpr std::chrono::milliseconds kBetweenLooksAtProcesses{10};
// What passes between two looks counts no more than this against a silent peer: this process may
// have stood still itself.
constexpr std::chrono::milliseconds kLongestGap{100};

const ChunkId* Ahead(const std::vector<ChunkId>& chunks, size_t at) {
  return at + kPrefetchChunks < chunks.size() ? &chunks[at + kPrefetchChunks] : nullptr;
}

void Join(std::vector<std::thread>* threads) {
  for (std::thread& thread : *threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace

int64_t SharedReader::Prefix::Add(int64_t number) {
  later_.insert(number);
  while (!later_.empty() && *later_.begin() == count_) {
    later_.erase(later_.begin());
    ++count_;
  }
  return count_;
}

SharedReader::SharedReader(const StepReader& reader, const ReadPlan& plan,
                           const ReadSchedule& schedule, PeerChannel& channel,
                           const SharedReadOptions& options)
    : reader_(reader),
      plan_(plan),
      schedule_(schedule),
      channel_(channel),
      options_(options),
      files_(reader),
      scratch_(static_cast<size_t>(std::max(1, options.threads))),
      given_(static_cast<size_t>(channel.world())),
      block_bytes_(std::min(StepReader::kBlockBytes, reader.index().chunk_bytes())),
      blocks_per_chunk_((reader.index().chunk_bytes() + block_bytes_ - 1) / block_bytes_) {
  for (const ReadShare& share : schedule.shares) {
    if (share.shared == 0 && share.reader != channel.rank()) continue;
    std::vector<ChunkId>& list =
        share.shared != 0 ? given_[static_cast<size_t>(share.reader)] : local_;
    for (int64_t c = share.first; c < share.first + share.count; ++c)
      list.push_back({share.file, c});
  }
}

SharedReader::~SharedReader() = default;

SharedReadResult SharedReader::Run() {
  // Nobody needs what another reads.
  if (schedule_.rounds.empty()) {
    const Result<int64_t> bytes = reader_.ReadChunks(plan_, local_, options_.threads);
    result_.status = bytes.status();
    if (bytes.ok()) result_.stats.bytes = *bytes;
    return std::move(result_);
  }

  // 1. Threads for the whole of it, before anything is agreed with peers.
  std::vector<std::thread> helpers;
  try {
    for (size_t w = 0; w < scratch_.size(); ++w) helpers.emplace_back([this, w] { WorkLoop(w); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do all the work.
  }

  // 2. Who is near; and far peers tell each other what they want. A near peer would have to wait
  // for a rank that does everything in turn.
  Status begun;
  try {
    begun = Begin(options_.share_memory && !helpers.empty());
  } catch (const std::exception& e) {
    begun = StatusOf(e);
  }
  {
    const std::lock_guard lock(mutex_);
    if (!begun.ok()) Lose(std::move(begun));
    phase_ = stop_ ? Phase::kQuit : Phase::kWork;
  }
  changed_.notify_all();

  // 3. All read, and take from near peers; this thread hands on to far ones.
  if (phase_ == Phase::kWork) {
    try {
      if (far_->any()) Rounds(&helpers);
      if (helpers.empty()) WorkLoop(0);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex_);
      Lose(StatusOf(e));
    }
  }
  Join(&helpers);
  if (far_) result_.stats.received += far_->received();
  return std::move(result_);
}

Status SharedReader::Begin(bool share) {
  const auto me = static_cast<size_t>(channel_.rank());
  const auto workers = static_cast<int64_t>(scratch_.size());
  const auto mine = static_cast<int64_t>(given_[me].size());
  const int64_t slots = std::min(mine * blocks_per_chunk_, workers + kSpareSlots);
  KEEL_ASSIGN_OR_RETURN(ring_,
                        BlockRing::Make(channel_, share, slots, block_bytes_, options_.deadline));
  std::vector<bool> far(given_.size(), false);
  for (size_t p = 0; p < given_.size(); ++p) far[p] = p != me && !ring_->near(static_cast<int>(p));
  int64_t most = 0;  // in a round
  for (const std::vector<int32_t>& counts : schedule_.rounds)
    most = std::max<int64_t>(most, counts[me]);
  kept_for_far_ = std::min(mine, std::max(workers, most) + 1);
  far_.emplace(reader_, plan_, schedule_, given_, channel_, kept_for_far_, options_.deadline);
  KEEL_RETURN_IF_ERROR(far_->Begin(far));
  for (size_t p = 0; p < given_.size(); ++p) {
    if (p == me || far[p]) continue;
    const int peer = static_cast<int>(p);
    if (!given_[p].empty() && ring_->slots(peer) == 0) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} shares no memory for what it is to read", p));
    }
    sources_.push_back(SourceFor(peer));
    if (sources_.back().left == 0) ring_->Take(peer, kAll);
  }
  watched_ = looked_ = steady_clock::now();
  return Status::Ok();
}

SharedReader::Source SharedReader::SourceFor(int peer) const {
  Source source;
  source.peer = peer;
  const std::vector<ChunkId>& theirs = given_[static_cast<size_t>(peer)];
  // Both ends number the blocks of all chunks that the peer hands on, in its order: what it
  // publishes is known by that number alone. This rank marks those with bytes that it needs, and
  // counts them.
  source.wanted.assign(theirs.size() * static_cast<size_t>(blocks_per_chunk_), false);
  for (size_t n = 0; n < theirs.size(); ++n) {
    const auto [begin, size] = reader_.RangeOf(theirs[n]);
    const size_t first = n * static_cast<size_t>(blocks_per_chunk_);
    bool any = false;
    for (int64_t at = 0; at < size; at += block_bytes_) {
      const int64_t end = std::min(at + block_bytes_, size);
      const bool wanted = plan_.BytesIn(theirs[n].file, begin + at, begin + end) > 0;
      any = any || wanted;
      // The last one says that the chunk is verified.
      if (!wanted && !(any && end == size)) continue;
      source.wanted[first + static_cast<size_t>(at / block_bytes_)] = true;
      ++source.left;
    }
  }
  return source;
}

void SharedReader::Rounds(std::vector<std::thread>* helpers) {
  for (size_t k = 0; k < schedule_.rounds.size(); ++k) {
    const int64_t end = far_->EndOf(k);
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return stop_ || ready_ >= end; };
    if (!helpers->empty()) {
      changed_.wait(lock, ready);
    } else {
      while (!ready()) (void)WorkOnce(0, &lock);
    }
    // A rank that stops still takes part in one round, to say so. Its workers end first, since they
    // write into the memory that this round sends.
    const bool stop = stop_;
    lock.unlock();
    if (stop) Join(helpers);
    FarExchange::RoundResult round = far_->Round(k, stop);
    lock.lock();
    if (!round.status.ok()) Lose(std::move(round.status));
    if (stop || result_.peer_lost) return;
    if (round.peer_stopped) {
      // All others are told in the next round.
      result_.peer_stopped = true;
      StopAll();
    }
    handed_far_ = end;
    changed_.notify_all();
  }
}

void SharedReader::WorkLoop(size_t worker) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ != Phase::kBegin; });
  if (phase_ == Phase::kQuit) return;
  Patience patience;
  for (;;) {
    switch (WorkOnce(worker, &lock)) {
      case Work::kOver:
        return;
      case Work::kDone:
        patience = Patience();
        break;
      case Work::kNone:
        Wait(&patience, &lock);
        break;
    }
  }
}

SharedReader::Work SharedReader::WorkOnce(size_t worker, std::unique_lock<std::mutex>* lock) {
  if (stop_) return Work::kOver;
  ring_->Beat();
  try {
    // 1. What peers have read: they need the memory.
    if (TakeBlock(lock)) return Work::kDone;
    // 2. What they wait for.
    const size_t given = given_[static_cast<size_t>(channel_.rank())].size();
    if (next_given_ < given &&
        (!far_->any() || static_cast<int64_t>(next_given_) < handed_far_ + kept_for_far_)) {
      ReadGiven(worker, lock);
      return Work::kDone;
    }
    // 3. What nobody else needs.
    if (next_local_ < local_.size()) {
      ReadLocal(worker, lock);
      return Work::kDone;
    }
    const bool more =
        next_given_ < given ||
        std::any_of(sources_.begin(), sources_.end(), [](const Source& s) { return s.left > 0; });
    return more ? Work::kNone : Work::kOver;
  } catch (const std::exception& e) {
    if (!lock->owns_lock()) lock->lock();
    Fail({}, StatusOf(e));
    return Work::kOver;
  }
}

void SharedReader::Wait(Patience* patience, std::unique_lock<std::mutex>* lock) {
  if (patience->yields < kYields) {
    ++patience->yields;
    lock->unlock();
    std::this_thread::yield();
    lock->lock();
    return;
  }
  WatchPeers();
  patience->pause =
      std::clamp(patience->pause + patience->pause / 4, kShortestPause, kLongestPause);
  if (!stop_) changed_.wait_for(*lock, patience->pause);
}

// Whether what is wanted of it is not there yet.
bool SharedReader::WaitsFor(const Source& source) const {
  return source.left > 0 && ring_->Published(source.peer) <= source.next;
}

// One that is wanted, if any is there.
//
// Sources take turns, so that no peer's slots stay full while another's are emptied. Entries of
// blocks that this rank does not want are passed over, which frees them, too.
bool SharedReader::TakeBlock(std::unique_lock<std::mutex>* lock) {
  for (size_t i = 0; i < sources_.size() && !stop_; ++i) {
    const size_t at = (turn_ + i) % sources_.size();
    Source& source = sources_[at];
    const auto blocks = static_cast<int64_t>(source.wanted.size());
    while (source.left > 0 && ring_->Published(source.peer) > source.next) {
      const int64_t entry = source.next++;
      const BlockRing::Entry block = ring_->EntryOf(source.peer, entry);
      if (entry >= blocks || block.block >= blocks) {
        Fail({}, Status(StatusCode::kInternal,
                        fmt::format("rank {} handed on what it was not to read", source.peer)));
        return false;
      }
      if (!source.wanted[static_cast<size_t>(block.block)]) {
        Skip(&source, entry);
        continue;
      }
      turn_ = (at + 1) % sources_.size();
      CopyBlock(&source, entry, block, lock);
      return true;
    }
  }
  return false;
}

void SharedReader::CopyBlock(Source* source, int64_t entry, const BlockRing::Entry& block,
                             std::unique_lock<std::mutex>* lock) {
  // The block leaves the list before the lock is given up, so that no other thread copies it, too;
  // it counts as taken only when it is copied, since its slot is then overwritten.
  source->wanted[static_cast<size_t>(block.block)] = false;
  --source->left;
  ++source->copying;
  lock->unlock();
  const std::vector<ChunkId>& theirs = given_[static_cast<size_t>(source->peer)];
  const ChunkId id = theirs[static_cast<size_t>(block.block / blocks_per_chunk_)];
  const auto [chunk, bytes_of_chunk] = reader_.RangeOf(id);
  const int64_t at = block.block % blocks_per_chunk_ * block_bytes_;
  const int64_t begin = chunk + at;
  const int64_t size = std::min(block_bytes_, bytes_of_chunk - at);
  plan_.Scatter(id.file, begin, block.bytes.first(static_cast<size_t>(size)));
  const int64_t bytes = plan_.BytesIn(id.file, begin, begin + size);
  lock->lock();
  --source->copying;
  result_.stats.received += bytes;
  Skip(source, entry);
}

// An entry is of no use any more, and after the last that is wanted no other is either.
void SharedReader::Skip(Source* source, int64_t entry) {
  const int64_t taken = source->taken.Add(entry);
  ring_->Take(source->peer, source->left == 0 && source->copying == 0 ? kAll : taken);
}

void SharedReader::TakeBlocks() {
  std::unique_lock lock(mutex_);
  ring_->Beat();
  while (!stop_ && TakeBlock(&lock)) {
  }
}

// Null once the work has stopped. Peers may wait for this rank to take their blocks before they
// take any of it.
Result<std::byte*> SharedReader::AcquireSlot() {
  std::unique_lock lock(mutex_);
  Patience patience;
  ++slot_waiters_;
  Result<std::byte*> slot = nullptr;
  while (!stop_) {
    ring_->Beat();
    slot = ring_->Acquire();
    if (!slot.ok() || *slot != nullptr) break;
    if (TakeBlock(&lock)) {
      patience = Patience();
    } else {
      Wait(&patience, &lock);
    }
  }
  --slot_waiters_;
  return slot;
}

void SharedReader::ReadGiven(size_t worker, std::unique_lock<std::mutex>* lock) {
  const size_t number = next_given_++;
  const ChunkId id = given_[static_cast<size_t>(channel_.rank())][number];
  const auto chunk = static_cast<int64_t>(number);
  lock->unlock();
  Status status = ReadGivenChunk(worker, chunk);
  lock->lock();
  if (!status.ok()) return Fail(id, std::move(status));
  result_.stats.bytes += reader_.RangeOf(id).second;
  ready_ = verified_.Add(chunk);
  if (far_->any()) changed_.notify_all();
}

// To the end even when the work stops: of several failures the first in file order is reported.
Status SharedReader::ReadGivenChunk(size_t worker, int64_t number) {
  const std::vector<ChunkId>& mine = given_[static_cast<size_t>(channel_.rank())];
  const ChunkId id = mine[static_cast<size_t>(number)];
  const auto [begin, size] = reader_.RangeOf(id);
  const int64_t last = (size - 1) / block_bytes_;
  KEEL_ASSIGN_OR_RETURN(const auto file, files_.Get(id.file));
  if (const ChunkId* later = Ahead(mine, static_cast<size_t>(number)))
    reader_.Prefetch(*file, id, *later);
  std::byte* const kept = far_->any() ? far_->Memory(number) : nullptr;
  const bool near = !sources_.empty();
  std::byte* slot = nullptr;
  // Where a block is read to: the chunk's kept memory if far peers get some of it, else a slot of
  // the ring if anybody is near, else wherever the reader likes (null).
  const auto place = [&](int64_t at) -> Result<std::byte*> {
    if (kept != nullptr) return kept + at;
    if (near) {
      KEEL_ASSIGN_OR_RETURN(slot, AcquireSlot());
    }
    return slot;
  };
  const auto hand_on = [&](int64_t block) {
    if (slot == nullptr) return;
    const std::lock_guard lock(mutex_);
    ring_->Publish(slot, number * blocks_per_chunk_ + block);
  };
  // What is done with a block once it is read, while it is in the caches.
  const auto sink = [&, from = begin](int64_t at, std::span<const std::byte> bytes) -> Status {
    plan_.Scatter(id.file, from + at, bytes);
    if (!near) return Status::Ok();
    if (kept != nullptr) {
      KEEL_ASSIGN_OR_RETURN(slot, AcquireSlot());
      if (slot != nullptr) std::memcpy(slot, bytes.data(), bytes.size());
    }
    if (at / block_bytes_ != last) hand_on(at / block_bytes_);
    TakeBlocks();
    return Status::Ok();
  };
  Status status = reader_.ReadChunk(*file, id, &scratch_[worker], place, sink);
  // The last block follows when the digest has been compared: who has all of a chunk has a verified
  // one.
  if (status.ok()) hand_on(last);
  if (kept == nullptr) return status;
  // To far peers the agreed bytes travel even after a failure: not those that are not proven.
  if (status.ok()) {
    far_->Pack(number);
  } else {
    std::memset(kept, 0, static_cast<size_t>(size));
  }
  return status;
}

void SharedReader::ReadLocal(size_t worker, std::unique_lock<std::mutex>* lock) {
  const size_t number = next_local_++;
  const ChunkId id = local_[number];
  lock->unlock();
  Status status = reader_.ReadChunkTo(plan_, &files_, id, Ahead(local_, number), &scratch_[worker],
                                      [this] { TakeBlocks(); });
  lock->lock();
  if (!status.ok()) return Fail(id, std::move(status));
  result_.stats.bytes += reader_.RangeOf(id).second;
}

// A peer that stops ends the work here too; one whose process has ended, or that shows no sign of
// life for the deadline while it is waited for, is lost.
void SharedReader::WatchPeers() {
  const auto now = steady_clock::now();
  const std::chrono::nanoseconds gap =
      std::min<std::chrono::nanoseconds>(now - watched_, kLongestGap);
  watched_ = now;
  const bool stopped = std::any_of(sources_.begin(), sources_.end(), [&](const Source& source) {
    return ring_->Stopped(source.peer);
  });
  // Who stops because of a third one may be seen before that one's end.
  if (stopped || now - looked_ > kBetweenLooksAtProcesses) {
    looked_ = now;
    for (const Source& source : sources_) {
      if (ring_->Alive(source.peer) || ring_->Stopped(source.peer)) continue;
      return Lose(Status(StatusCode::kUnavailable,
                         fmt::format("rank {} waited for rank {} to exchange what was read: its "
                                     "process has ended",
                                     channel_.rank(), source.peer)));
    }
  }
  if (stopped) {
    result_.peer_stopped = true;
    return StopAll();
  }
  // A peer counts as silent only while this rank waits for it: for a block, or for it to take one
  // whose slot is needed here. A peer that has nothing to do need not show life.
  for (Source& source : sources_) {
    const bool holds_slot = slot_waiters_ > 0 && ring_->TakenBy(source.peer) < ring_->published();
    const uint64_t beats = ring_->BeatOf(source.peer);
    const bool silent = (holds_slot || WaitsFor(source)) && beats == source.beats;
    source.beats = beats;
    source.silent = silent ? source.silent + gap : std::chrono::nanoseconds(0);
    if (source.silent <= options_.deadline) continue;
    return Lose(Status(StatusCode::kDeadlineExceeded,
                       fmt::format("rank {} waited {} ms for rank {} to exchange what was read",
                                   channel_.rank(), options_.deadline.count(), source.peer)));
  }
}

// Of several failures the first in file order is reported.
void SharedReader::Fail(ChunkId id, Status status) {
  const bool first = result_.status.ok() ||
                     std::pair(id.file, id.chunk) < std::pair(failed_at_.file, failed_at_.chunk);
  if (!result_.peer_lost && first) {
    result_.status = std::move(status);
    failed_at_ = id;
  }
  StopAll();
}

void SharedReader::Lose(Status status) {
  if (!result_.peer_lost) result_.status = std::move(status);
  result_.peer_lost = true;
  StopAll();
}

void SharedReader::StopAll() {
  stop_ = true;
  if (ring_ != nullptr) ring_->Stop();
  changed_.notify_all();
}

}  // namespace keel::checkpoint
