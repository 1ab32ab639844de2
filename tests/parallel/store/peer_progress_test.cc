#include "parallel/store/peer_progress.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace keel::parallel {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kSilence{400};

// body(rank, its progress) on `world` threads: what each came to.
template <class Body>
std::vector<Status> OnRanks(int world, const Body& body) {
  const Store store = Store::InProcess();
  std::vector<Status> ended(static_cast<size_t>(world), Status::Ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      PeerProgress progress(store, "work", rank, world, kSilence);
      ended[static_cast<size_t>(rank)] = body(rank, progress);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ended;
}

TEST(PeerProgressTest, NobodyPassesBeforeAllAreDone) {
  constexpr int kWorld = 3;
  std::atomic<int> done{0};
  const auto ended = OnRanks(kWorld, [&](int rank, PeerProgress& progress) {
    for (int round = 1; round <= 20; ++round) {
      if (round % kWorld == rank) std::this_thread::sleep_for(milliseconds(2));
      ++done;
      const Status all = progress.WaitForAll();
      if (!all.ok()) return all;
      if (done < round * kWorld) return Status(StatusCode::kInternal, "passed before all");
    }
    return Status::Ok();
  });
  for (const Status& status : ended) EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(PeerProgressTest, WorkThatGoesOnIsWaitedForBeyondTheDeadline) {
  const auto ended = OnRanks(2, [&](int rank, PeerProgress& progress) {
    const auto until = std::chrono::steady_clock::now() + 3 * kSilence;
    while (rank == 1 && std::chrono::steady_clock::now() < until) {
      const Status said = progress.GoesOn();
      if (!said.ok()) return said;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return progress.WaitForAll();
  });
  for (const Status& status : ended) EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(PeerProgressTest, WhoSaysNothingIsNamed) {
  const auto ended = OnRanks(3, [&](int rank, PeerProgress& progress) {
    if (rank == 2) return Status::Ok();  // it hangs
    return progress.WaitForAll();
  });
  for (int rank : {0, 1}) {
    const Status& status = ended[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 has said nothing for"));
  }
}

TEST(PeerProgressTest, ARankAloneWaitsForNobody) {
  PeerProgress progress(Store::InProcess(), "work", 0, 1, kSilence);
  EXPECT_TRUE(progress.GoesOn().ok());
  EXPECT_TRUE(progress.WaitForAll().ok());
}

}  // namespace
}  // namespace keel::parallel
