#include "checkpoint/shared_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

namespace keel::checkpoint {
namespace {

using std::chrono::steady_clock;

// Announced to the disk ahead of being read.
constexpr size_t kPrefetchChunks = 4;
// Chunks that wait for peers, beside those that are being read: few, so that they stay in the
// caches.
constexpr int64_t kSpareSlots = 1;
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
      given_(static_cast<size_t>(channel.world())) {
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
    begun = Status(StatusCode::kInternal, e.what());
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
      Lose(Status(StatusCode::kInternal, e.what()));
    }
  }
  Join(&helpers);
  if (far_) result_.stats.received += far_->received();
  return std::move(result_);
}

Status SharedReader::Begin(bool share) {
  const auto me = static_cast<size_t>(channel_.rank());
  int64_t most = 0;
  for (const std::vector<int32_t>& counts : schedule_.rounds)
    most = std::max<int64_t>(most, counts[me]);
  slots_ = std::min(static_cast<int64_t>(given_[me].size()),
                    std::max(static_cast<int64_t>(scratch_.size()) + kSpareSlots, most + 1));
  KEEL_ASSIGN_OR_RETURN(ring_, ChunkRing::Make(channel_, share, slots_,
                                               reader_.index().chunk_bytes(), options_.deadline));
  std::vector<bool> far(given_.size(), false);
  for (size_t p = 0; p < given_.size(); ++p) far[p] = p != me && !ring_->near(static_cast<int>(p));
  far_.emplace(reader_, plan_, schedule_, given_, channel_, slots_, options_.deadline);
  KEEL_RETURN_IF_ERROR(far_->Begin(far));
  // What is agreed with far peers is sent even after a failure, from whatever a slot holds.
  if (far_->any()) KEEL_RETURN_IF_ERROR(ring_->PrepareAll());
  for (size_t p = 0; p < given_.size(); ++p) {
    if (p == me || far[p]) continue;
    if (!given_[p].empty() && ring_->slots(static_cast<int>(p)) == 0) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} shares no memory for what it is to read", p));
    }
    Source& source = sources_.emplace_back();
    source.peer = static_cast<int>(p);
    for (size_t i = 0; i < given_[p].size(); ++i) {
      const auto [begin, size] = reader_.RangeOf(given_[p][i]);
      if (plan_.BytesIn(given_[p][i].file, begin, begin + size) > 0)
        source.wanted.push_back(static_cast<int64_t>(i));
    }
    ring_->Take(source.peer, source.NeedsNoMore(0, given_[p].size()));
  }
  watched_ = looked_ = steady_clock::now();
  return Status::Ok();
}

void SharedReader::Rounds(std::vector<std::thread>* helpers) {
  for (size_t k = 0; k < schedule_.rounds.size(); ++k) {
    const int64_t end = far_->EndOf(k);
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return stop_ || published_ >= end; };
    if (!helpers->empty()) {
      changed_.wait(lock, ready);
    } else {
      while (!ready()) {
        lock.unlock();
        (void)WorkOnce(0);
        lock.lock();
      }
    }
    const bool stop = stop_;
    lock.unlock();
    if (stop) Join(helpers);
    FarExchange::RoundResult round =
        far_->Round(k, stop, [this](int64_t n) { return ring_->slot(n); });
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
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ != Phase::kBegin; });
    if (phase_ == Phase::kQuit) return;
  }
  std::chrono::microseconds pause = kShortestPause;
  int yields = 0;
  for (;;) {
    switch (WorkOnce(worker)) {
      case Work::kOver:
        return;
      case Work::kDone:
        pause = kShortestPause;
        yields = 0;
        break;
      case Work::kNone:
        if (yields < kYields) {
          ++yields;
          std::this_thread::yield();
          break;
        }
        std::unique_lock lock(mutex_);
        WatchPeers();
        if (!stop_) changed_.wait_for(lock, pause);
        pause = std::min(pause + pause / 4, kLongestPause);
        break;
    }
  }
}

SharedReader::Work SharedReader::WorkOnce(size_t worker) {
  std::unique_lock lock(mutex_);
  if (stop_) return Work::kOver;
  ring_->Beat();
  ChunkId at;
  try {
    // 1. What peers have read: they need the memory.
    bool more = false;
    for (size_t i = 0; i < sources_.size(); ++i) {
      Source& source = sources_[(turn_ + i) % sources_.size()];
      if (source.next == source.wanted.size()) continue;
      more = true;
      if (WaitsFor(source)) continue;
      turn_ = (turn_ + i + 1) % sources_.size();
      TakeChunk(&source, &lock);
      return Work::kDone;
    }
    // 2. What they wait for.
    const std::vector<ChunkId>& mine = given_[static_cast<size_t>(channel_.rank())];
    if (next_given_ < mine.size()) {
      more = true;
      if (ring_->Place(static_cast<int64_t>(next_given_), TakenByAll())) {
        at = mine[next_given_];
        ReadGiven(worker, &lock);
        return Work::kDone;
      }
    }
    // 3. What nobody else needs.
    if (next_local_ < local_.size()) {
      at = local_[next_local_];
      ReadLocal(worker, &lock);
      return Work::kDone;
    }
    return more ? Work::kNone : Work::kOver;
  } catch (const std::exception& e) {
    if (!lock.owns_lock()) lock.lock();
    Fail(at, Status(StatusCode::kInternal, e.what()));
    return Work::kOver;
  }
}

int64_t SharedReader::TakenByAll() const {
  int64_t taken = far_->any() ? handed_far_ : published_;
  for (const Source& source : sources_) taken = std::min(taken, ring_->TakenBy(source.peer));
  return taken;
}

// Whether the next chunk that is wanted of it is not there yet.
bool SharedReader::WaitsFor(const Source& source) const {
  return source.next < source.wanted.size() &&
         ring_->Published(source.peer) <= source.wanted[source.next];
}

void SharedReader::TakeChunk(Source* source, std::unique_lock<std::mutex>* lock) {
  const size_t number = source->next++;
  const int64_t chunk = source->wanted[number];
  const std::vector<ChunkId>& theirs = given_[static_cast<size_t>(source->peer)];
  const ChunkId id = theirs[static_cast<size_t>(chunk)];
  lock->unlock();
  const auto [begin, size] = reader_.RangeOf(id);
  plan_.Scatter(id.file, begin,
                ring_->slot_of(source->peer, chunk).first(static_cast<size_t>(size)));
  const int64_t bytes = plan_.BytesIn(id.file, begin, begin + size);
  lock->lock();
  result_.stats.received += bytes;
  const int64_t taken = source->taken.Add(static_cast<int64_t>(number));
  ring_->Take(source->peer, source->NeedsNoMore(static_cast<size_t>(taken), theirs.size()));
}

void SharedReader::ReadGiven(size_t worker, std::unique_lock<std::mutex>* lock) {
  const std::vector<ChunkId>& mine = given_[static_cast<size_t>(channel_.rank())];
  const size_t number = next_given_++;
  const ChunkId id = mine[number];
  const auto chunk = static_cast<int64_t>(number);
  lock->unlock();
  std::byte* const slot = ring_->slot(chunk);
  const int64_t size = reader_.RangeOf(id).second;
  const auto read = [&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(const auto file, files_.Get(id.file));
    if (const ChunkId* later = Ahead(mine, number)) reader_.Prefetch(*file, id, *later);
    return reader_.ReadChunk(
        *file, id, slot, &scratch_[worker],
        [&](int64_t at, std::span<const std::byte> block) { plan_.Scatter(id.file, at, block); });
  };
  Status status = ring_->Prepare(chunk);
  if (status.ok()) {
    status = read();
    if (status.ok() && far_->any()) far_->Pack(chunk, slot);
    // To far peers the agreed bytes travel even after a failure: not those that are not proven.
    if (!status.ok()) std::memset(slot, 0, static_cast<size_t>(size));
  }
  lock->lock();
  if (!status.ok()) return Fail(id, std::move(status));
  result_.stats.bytes += size;
  // A chunk is published when it and all before it are verified.
  published_ = read_.Add(chunk);
  ring_->Publish(published_);
  if (far_->any()) changed_.notify_all();
}

void SharedReader::ReadLocal(size_t worker, std::unique_lock<std::mutex>* lock) {
  const size_t number = next_local_++;
  const ChunkId id = local_[number];
  lock->unlock();
  Status status = reader_.ReadChunkTo(plan_, &files_, id, Ahead(local_, number), &scratch_[worker]);
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
  const bool more = next_given_ < given_[static_cast<size_t>(channel_.rank())].size();
  for (Source& source : sources_) {
    const bool holds_slot =
        more && ring_->TakenBy(source.peer) <= static_cast<int64_t>(next_given_) - slots_;
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
