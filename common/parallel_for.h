// ParallelFor: runs body(i) for i in [0, count) on a few threads, the caller's among them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"

namespace keel {

// `body(i, worker)` returns a Status; `worker` in [0, threads) names the thread, for its buffers.
// After the first failure no new index is started. Of several failures the one with the lowest
// index is returned. Exceptions become what StatusOf says.
template <typename Body>
Status ParallelFor(int64_t count, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  int64_t failed_at = count;
  Status failure;
  const auto work = [&](int worker) {
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count || stop.load(std::memory_order_relaxed)) return;
      Status status;
      try {
        status = body(i, worker);
      } catch (const std::exception& e) {
        status = StatusOf(e);
      }
      if (status.ok()) continue;
      stop.store(true, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (i < failed_at) {
        failed_at = i;
        failure = std::move(status);
      }
    }
  };
  std::vector<std::thread> helpers;
  const int extra = static_cast<int>(std::min<int64_t>(threads, count)) - 1;
  try {
    for (int t = 0; t < extra; ++t) helpers.emplace_back(work, t + 1);
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do all the work.
  }
  work(0);
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

}  // namespace keel
