#include "parallel/store/peer_progress.h"

#include <fmt/format.h>

#include <utility>

namespace keel::parallel {

namespace {

constexpr const char* kDone = "done";

}  // namespace

PeerProgress::PeerProgress(const Store& store, const std::string& topic, int rank, int world,
                           std::chrono::milliseconds deadline)
    : store_(store.WithPrefix(topic)), rank_(rank), world_(world), deadline_(deadline) {}

std::string PeerProgress::Key(int rank) const { return fmt::format("{}/{}", round_, rank); }

Status PeerProgress::Say() {
  last_ = Clock::now();
  return store_.Set(Key(rank_), std::to_string(++said_));
}

Status PeerProgress::GoesOn() {
  // Often enough to be heard by who looks at every fourth part of the deadline.
  if (world_ == 1 || Clock::now() - last_ < deadline_ / 8) return Status::Ok();
  return Say();
}

Status PeerProgress::WaitForAll() {
  if (world_ == 1) return Status::Ok();
  const std::string all = fmt::format("{}/all", round_);
  const std::string count = fmt::format("{}/count", round_);
  KEEL_RETURN_IF_ERROR(store_.Set(Key(rank_), kDone));
  KEEL_ASSIGN_OR_RETURN(const int64_t done, store_.Add(count, 1));
  if (done == world_) {
    KEEL_RETURN_IF_ERROR(store_.Set(all, kDone));
  } else {
    heard_.clear();
    while (true) {
      const Result<std::string> found = store_.Get(all, deadline_ / 4);
      if (found.ok()) break;
      if (found.status().code() != StatusCode::kDeadlineExceeded) return found.status();
      KEEL_RETURN_IF_ERROR(Listen());
    }
  }
  // All are in this round, so that nobody reads the last one's keys any more.
  if (round_ > 0) {
    const std::string before = std::to_string(round_ - 1);
    (void)store_.Delete(fmt::format("{}/{}", before, rank_));
    if (done == world_) {
      (void)store_.Delete(before + "/all");
      (void)store_.Delete(before + "/count");
    }
  }
  ++round_;
  last_ = Clock::now();
  return Status::Ok();
}

Status PeerProgress::Listen() {
  for (int rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    const Result<std::string> said = store_.Get(Key(rank), std::chrono::milliseconds(0));
    if (!said.ok() && said.status().code() != StatusCode::kDeadlineExceeded) return said.status();
    const auto now = Clock::now();
    const std::string text = said.ok() ? *said : std::string();
    const auto [heard, first] = heard_.try_emplace(rank, Heard{text, now});
    if (text != heard->second.said) heard->second = {text, now};
    if (text == kDone || now - heard->second.at <= deadline_) continue;
    return Status(StatusCode::kDeadlineExceeded,
                  fmt::format("rank {} has said nothing for {:.3g} s, while others waited for its "
                              "work: it hangs, or is lost",
                              rank, std::chrono::duration<double>(now - heard->second.at).count()));
  }
  return Status::Ok();
}

}  // namespace keel::parallel
