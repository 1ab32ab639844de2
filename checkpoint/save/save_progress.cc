#include "checkpoint/save/save_progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::checkpoint {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

SaveProgress::SaveProgress(Coordinator& coordinator, const Clock& clock, milliseconds deadline)
    : coordinator_(coordinator),
      clock_(clock),
      interval_(std::max<nanoseconds>(deadline / 8, milliseconds(1))) {}

std::string SaveProgress::KeyOf(int rank) const { return fmt::format("{}/moved/{}", tag_, rank); }

void SaveProgress::Begin(std::string_view tag) {
  tag_ = tag;
  has_told_ = false;
  told_ = clock_.Monotonic().count();
  moved_ = told_.load();
}

void SaveProgress::End() {
  if (has_told_) (void)coordinator_.Delete(KeyOf(coordinator_.rank()));
}

void SaveProgress::Move() {
  const int64_t now = clock_.Monotonic().count();
  moved_.store(now);
  Tell(now);
}

void SaveProgress::Tell(int64_t now) {
  int64_t told = told_.load();
  if (tag_.empty()) return;  // nobody waits for a save that has not begun
  if (coordinator_.world() == 1 || now - told < interval_.count()) return;
  if (!told_.compare_exchange_strong(told, now)) return;  // another thread does
  has_told_ = true;
  // One that is lost is made up for by the next.
  (void)coordinator_.Put(KeyOf(coordinator_.rank()), std::to_string(now));
}

Result<std::string> SaveProgress::Await(const std::string& key, int peer, milliseconds patience,
                                        bool passes_on, nanoseconds* since) {
  std::string last;  // that the peer has told
  for (;;) {
    const nanoseconds begun = clock_.Monotonic();
    const nanoseconds left = std::max(nanoseconds(0), *since + patience - begun);
    const auto wait = std::chrono::ceil<milliseconds>(std::min(left, interval_));
    Result<std::string> found = coordinator_.Get(key, wait);
    if (found.ok() || found.status().code() != StatusCode::kDeadlineExceeded) return found;
    const nanoseconds now = clock_.Monotonic();
    const Result<std::string> told = coordinator_.Get(KeyOf(peer), milliseconds(0));
    if (told.ok() && *told != last) {
      last = *told;
      *since = now;
      moved_.store(now.count());
      if (passes_on) Tell(now.count());
    }
    // A wait that was cut short is over: the run ends.
    const bool cut = now - begun < wait / 2;
    if (!cut && now - *since < patience) continue;
    return Status(StatusCode::kDeadlineExceeded,
                  fmt::format("it was waited for on rank {} and has got no further for {} ms",
                              coordinator_.rank(),
                              std::chrono::duration_cast<milliseconds>(now - *since).count()));
  }
}

}  // namespace keel::checkpoint
