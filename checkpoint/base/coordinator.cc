#include "checkpoint/base/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/guarded.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

constexpr std::chrono::milliseconds kCleanUpDeadline{2'000};
// Keys of a trip at most: some of them have values of many kilobytes.
constexpr int kMostAhead = 256;
// For all of a trip to be there, before each that is not is waited for by itself.
constexpr std::chrono::milliseconds kLookPatience{500};

std::string Key(std::string_view tag, std::string_view what, int rank) {
  return fmt::format("{}/{}/{}", tag, what, rank);
}

std::string KeyOfAll(std::string_view tag) { return fmt::format("{}/all", tag); }

std::string Encoded(const Result<std::string>& result) {
  return result.ok() ? EncodeResult(Status::Ok(), *result) : EncodeResult(result.status(), {});
}

std::vector<std::string> KeysOfPeers(std::string_view tag, std::string_view what, int world) {
  std::vector<std::string> keys;
  for (int r = 1; r < world; ++r) keys.push_back(Key(tag, what, r));
  return keys;
}

// What each rank says under `tag`, in rank order; `mine` is rank 0's, which hears them. The
// deadline is of all together: the others wait twice as long for what comes of it.
Result<std::vector<std::string>> HearAll(Coordinator& coordinator, std::string_view tag,
                                         std::string_view mine,
                                         std::chrono::milliseconds deadline) {
  std::vector<std::string> values = {std::string(mine)};
  PeerKeys said(coordinator, deadline, [&](int r) { return Key(tag, "in", r); });
  const auto until = coordinator.clock().Monotonic() + deadline;
  const auto wait = [&](const std::string& key) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - coordinator.clock().Monotonic());
    return coordinator.Get(key, std::max(left, std::chrono::milliseconds(0)));
  };
  for (int r = 1; r < coordinator.world(); ++r) {
    Result<std::string> one = said.Get(r, wait);
    if (!one.ok()) {
      return one.status().WithContext(
          fmt::format("waiting for rank {}, of {} ms for all", r, deadline.count()));
    }
    values.push_back(std::move(one).value());
  }
  return values;
}

}  // namespace

std::string EncodeResult(const Status& status, std::string_view value) {
  WireWriter out;
  out.U64(static_cast<uint64_t>(status.code())).U64(static_cast<uint64_t>(status.cause()));
  out.Text(status.message());
  if (status.ok()) out.Text(value);
  return std::move(out).Take();
}

Result<std::string> DecodeResult(std::string_view bytes, std::string_view what) {
  WireReader in(bytes);
  uint64_t code = 0, cause = 0;
  std::string text;
  const bool whole = in.U64(&code) && in.U64(&cause) && in.Text(&text) &&
                     code <= static_cast<uint64_t>(StatusCode::kInternal) &&
                     cause <= static_cast<uint64_t>(StatusCause::kDenied);
  if (whole && code != 0) {
    return Status(static_cast<StatusCode>(code), static_cast<StatusCause>(cause), std::move(text));
  }
  if (!whole || !in.Text(&text) || !in.AtEnd())
    return Status(StatusCode::kInternal, fmt::format("a peer sent a malformed {}", what));
  return text;
}

Status Coordinator::PutAll(const std::vector<std::string>& keys,
                           const std::vector<std::string>& values) {
  for (size_t i = 0; i < keys.size(); ++i) KEEL_RETURN_IF_ERROR(Put(keys[i], values[i]));
  return Status::Ok();
}

Status Coordinator::DeleteAll(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) KEEL_RETURN_IF_ERROR(Delete(key));
  return Status::Ok();
}

Result<std::string> PeerKeys::Get(int rank, const Wait& wait) {
  if (rank >= looked_to_) LookFrom(rank);
  const auto at = static_cast<size_t>(rank - first_);
  if (at < ahead_.size() && ahead_[at]) return std::exchange(ahead_[at], {}).value();
  return wait(key_of_(rank));
}

Result<std::string> PeerKeys::Get(int rank) {
  return Get(rank, [this](const std::string& key) { return coordinator_.Get(key, deadline_); });
}

void PeerKeys::LookFrom(int rank) {
  first_ = rank;
  looked_to_ = std::min(rank + size_, coordinator_.world());
  std::vector<std::string> keys;
  for (int r = rank; r < looked_to_; ++r) keys.push_back(key_of_(r));
  ahead_.clear();
  // What is wrong with the store the next Get says.
  if (auto found = coordinator_.Look(keys, std::min(deadline_ / 8, kLookPatience)); found.ok())
    ahead_ = std::move(found).value();
  const auto there =
      std::count_if(ahead_.begin(), ahead_.end(), [](const auto& one) { return one.has_value(); });
  if (there == size_) size_ = std::min(2 * size_, kMostAhead);
  if (2 * there < size_) size_ = std::max(size_ / 2, 2);
}

Result<std::vector<std::optional<std::string>>> HurriedCoordinator::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
  const bool hurried = clock_.Monotonic().count() > until_.load();
  return inner_.Look(keys, hurried ? std::chrono::milliseconds(0) : patience);
}

Result<std::string> HurriedCoordinator::Get(std::string_view key,
                                            std::chrono::milliseconds deadline) {
  // Short waits, so that one can end early; of a world of one, and of keys that are there, there is
  // only the first. Whoever has waited long can take a little longer to end: thousands that wait
  // for one slow rank ask for little.
  constexpr std::chrono::milliseconds kLongest{4'000};
  std::chrono::milliseconds slice{500};
  const bool hurried = clock_.Monotonic().count() > until_.load();
  for (auto left = hurried ? std::chrono::milliseconds(0) : deadline;; left -= slice) {
    if (left < deadline) slice = std::min(2 * slice, kLongest);
    Result<std::string> value = inner_.Get(key, std::min(left, slice));
    if (value.ok() || value.status().code() != StatusCode::kDeadlineExceeded) return value;
    if (left <= slice) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("{} did not appear within {} ms", key, deadline.count()));
    }
    if (clock_.Monotonic().count() > until_.load()) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("{} was not waited for any longer: the run ends", key));
    }
  }
}

Result<std::string> Announce(Coordinator& coordinator, std::string_view tag,
                             const Result<std::string>& mine, std::chrono::milliseconds deadline) {
  if (coordinator.world() == 1) return mine;
  if (coordinator.rank() == 0) {
    KEEL_RETURN_IF_ERROR(coordinator.Put(KeyOfAll(tag), Encoded(mine)));
    return mine;
  }
  KEEL_ASSIGN_OR_RETURN(const std::string text, coordinator.Get(KeyOfAll(tag), 2 * deadline));
  return DecodeResult(text, tag);
}

void Retract(Coordinator& coordinator, std::string_view tag) {
  if (coordinator.world() > 1 && coordinator.rank() == 0) (void)coordinator.Delete(KeyOfAll(tag));
}

void Settle(Coordinator& coordinator, std::string_view tag, std::chrono::milliseconds deadline) {
  if (coordinator.rank() != 0) {
    (void)coordinator.Put(Key(tag, "read", coordinator.rank()), "");
    return;
  }
  // The value has been published: what follows only tidies the store, and a peer that is late or
  // gone shows at the next wait that needs it.
  PeerKeys read(coordinator, std::min(deadline, kCleanUpDeadline),
                [&](int r) { return Key(tag, "read", r); });
  for (int r = 1; r < coordinator.world(); ++r) {
    if (!read.Get(r).ok()) return;
  }
  (void)coordinator.DeleteAll(KeysOfPeers(tag, "read", coordinator.world()));
  Retract(coordinator, tag);
}

Result<std::string> BroadcastResult(Coordinator& coordinator, std::string_view tag,
                                    const Result<std::string>& mine,
                                    std::chrono::milliseconds deadline) {
  Result<std::string> value = Announce(coordinator, tag, mine, deadline);
  Settle(coordinator, tag, deadline);
  return value;
}

Result<std::vector<std::string>> Gather(Coordinator& coordinator, std::string_view tag,
                                        std::string_view value,
                                        std::chrono::milliseconds deadline) {
  if (coordinator.rank() != 0) {
    KEEL_RETURN_IF_ERROR(coordinator.Put(Key(tag, "in", coordinator.rank()), value));
    return std::vector<std::string>();
  }
  KEEL_ASSIGN_OR_RETURN(std::vector<std::string> values,
                        HearAll(coordinator, tag, value, deadline));
  (void)coordinator.DeleteAll(KeysOfPeers(tag, "in", coordinator.world()));
  return values;
}

Result<std::vector<std::string>> AllGather(Coordinator& coordinator, std::string_view tag,
                                           std::string_view value,
                                           std::chrono::milliseconds deadline) {
  Result<std::vector<std::string>> gathered = Gather(coordinator, tag, value, deadline);
  Result<std::string> packed = gathered.status().ok() ? Result<std::string>(std::string())
                                                      : Result<std::string>(gathered.status());
  if (coordinator.rank() != 0) {
    KEEL_RETURN_IF_ERROR(gathered.status());
  } else if (gathered.ok()) {
    WireWriter out;
    for (const std::string& one : *gathered) out.Text(one);
    packed = std::move(out).Take();
  }
  KEEL_ASSIGN_OR_RETURN(std::string text, BroadcastResult(coordinator, tag, packed, deadline));
  std::vector<std::string> values(static_cast<size_t>(coordinator.world()));
  WireReader in(text);
  for (std::string& one : values) {
    if (!in.Text(&one)) {
      return Status(StatusCode::kInternal, fmt::format("rank 0 sent a malformed '{}'", tag));
    }
  }
  return values;
}

Result<std::vector<std::string>> GatherResults(Coordinator& coordinator, std::string_view tag,
                                               const Result<std::string>& value,
                                               std::chrono::milliseconds deadline) {
  KEEL_ASSIGN_OR_RETURN(std::vector<std::string> all,
                        Gather(coordinator, tag, Encoded(value), deadline));
  for (size_t r = 0; r < all.size(); ++r) {
    Result<std::string> theirs = DecodeResult(all[r], tag);
    if (!theirs.ok()) return theirs.status().WithContext(fmt::format("rank {}", r));
    all[r] = std::move(theirs).value();
  }
  return all;
}

Result<std::string> Consult(Coordinator& coordinator, std::string_view tag, std::string_view value,
                            const Answer& answer, std::chrono::milliseconds deadline) {
  const int rank = coordinator.rank();
  if (rank != 0) {
    KEEL_RETURN_IF_ERROR(coordinator.Put(Key(tag, "in", rank), value));
    KEEL_ASSIGN_OR_RETURN(const std::string text,
                          coordinator.Get(Key(tag, "to", rank), 2 * deadline));
    (void)coordinator.Delete(Key(tag, "in", rank));
    (void)coordinator.Delete(Key(tag, "to", rank));
    return DecodeResult(text, tag);
  }
  Result<std::vector<std::string>> answers = std::vector<std::string>();
  // What is thrown is an answer, too: the others wait for one.
  const Status gathered = Guarded([&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(std::vector<std::string> values,
                          HearAll(coordinator, tag, value, deadline));
    answers = answer(std::move(values));
    return answers.status();
  });
  if (!gathered.ok()) answers = gathered;
  std::vector<std::string> told;
  for (int r = 1; r < coordinator.world(); ++r) {
    told.push_back(answers.ok() ? Encoded(std::exchange((*answers)[static_cast<size_t>(r)], {}))
                                : Encoded(answers.status()));
  }
  KEEL_RETURN_IF_ERROR(coordinator.PutAll(KeysOfPeers(tag, "to", coordinator.world()), told));
  KEEL_RETURN_IF_ERROR(answers.status());
  return std::move(answers->front());
}

Result<std::string> Broadcast(Coordinator& coordinator, std::string_view tag,
                              std::string_view value, std::chrono::milliseconds deadline) {
  return BroadcastResult(coordinator, tag, std::string(value), deadline);
}

Status AgreeOn(Coordinator& coordinator, std::string_view tag, const Status& mine,
               std::chrono::milliseconds deadline) {
  const Result<std::string> word = mine.ok() ? Result<std::string>(std::string()) : mine;
  // On rank 0 the verdict; on the others whether it was told.
  const Status gathered = GatherResults(coordinator, tag, word, deadline).status();
  if (coordinator.rank() != 0) KEEL_RETURN_IF_ERROR(gathered);
  const Result<std::string> verdict = gathered.ok() ? Result<std::string>(std::string()) : gathered;
  return BroadcastResult(coordinator, tag, verdict, deadline).status();
}

struct LocalCoordinatorHub::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string, std::less<>> values;
};

class LocalCoordinatorHub::Member : public Coordinator {
 public:
  Member(State& state, int rank, int world) : state_(state), rank_(rank), world_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }

  Status Put(std::string_view key, std::string_view value) override {
    {
      std::lock_guard lock(state_.mutex);
      state_.values.insert_or_assign(std::string(key), std::string(value));
    }
    state_.changed.notify_all();
    return Status::Ok();
  }

  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(state_.mutex);
    auto found = state_.values.end();
    const bool there = state_.changed.wait_for(lock, deadline, [&] {
      found = state_.values.find(key);
      return found != state_.values.end();
    });
    if (!there) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("rank {} waited {} ms for '{}', which no peer has set", rank_,
                                deadline.count(), key));
    }
    return found->second;
  }

  Result<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& keys, std::chrono::milliseconds patience) override {
    std::unique_lock lock(state_.mutex);
    state_.changed.wait_for(lock, patience, [&] {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const std::string& key) { return state_.values.contains(key); });
    });
    std::vector<std::optional<std::string>> values;
    for (const std::string& key : keys) {
      const auto found = state_.values.find(key);
      values.push_back(found == state_.values.end() ? std::nullopt : std::optional(found->second));
    }
    return values;
  }

  Status Delete(std::string_view key) override {
    std::lock_guard lock(state_.mutex);
    if (const auto found = state_.values.find(key); found != state_.values.end()) {
      state_.values.erase(found);
    }
    return Status::Ok();
  }

 private:
  State& state_;
  const int rank_;
  const int world_;
};

LocalCoordinatorHub::LocalCoordinatorHub(int world) : state_(std::make_unique<State>()) {
  for (int r = 0; r < world; ++r) members_.push_back(std::make_unique<Member>(*state_, r, world));
}

LocalCoordinatorHub::~LocalCoordinatorHub() = default;

Coordinator& LocalCoordinatorHub::rank(int r) { return *members_.at(static_cast<size_t>(r)); }

}  // namespace keel::checkpoint
