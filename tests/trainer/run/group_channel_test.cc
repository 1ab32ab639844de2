#include "trainer/run/group_channel.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/support/ranks.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Message(int from, int to, int number, size_t size) {
  std::mt19937_64 random(static_cast<uint64_t>(from * 1000 + to * 100 + number));
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(GroupChannel, AllMessagesArriveInOrder) {
  for (const int world : {2, 3}) {
    keel::testing::RunRanks(1, world, 1, [&](parallel::ParallelContext& context) {
      GroupChannel channel(context.world());
      const int me = channel.rank();
      ASSERT_EQ(channel.world(), world);
      for (int call = 0; call < 3; ++call) {
        // Of all sizes, several from each to each, but none from rank 1 to rank 0 at the last call.
        const std::vector<size_t> sizes = {1, 8, 100'000, 5'000'000};
        std::vector<std::vector<std::byte>> out, in;
        std::vector<checkpoint::PeerChannel::Send> sends;
        std::vector<checkpoint::PeerChannel::Receive> receives;
        const auto silent = [&](int from, int to) { return call == 2 && from == 1 && to == 0; };
        for (int peer = 0; peer < world; ++peer) {
          if (peer == me) continue;
          for (size_t i = 0; i < sizes.size(); ++i) {
            if (!silent(me, peer)) {
              out.push_back(Message(me, peer, static_cast<int>(i) + 10 * call, sizes[i]));
              sends.push_back({peer, out.back()});
            }
            if (!silent(peer, me)) {
              in.emplace_back(sizes[i]);
              receives.push_back({peer, in.back()});
            }
          }
        }
        const Status status = channel.Exchange(sends, receives, std::chrono::seconds(60));
        ASSERT_TRUE(status.ok()) << status.ToString();
        size_t k = 0;
        for (int peer = 0; peer < world; ++peer) {
          if (peer == me || silent(peer, me)) continue;
          for (size_t i = 0; i < sizes.size(); ++i) {
            EXPECT_EQ(in[k++], Message(peer, me, static_cast<int>(i) + 10 * call, sizes[i]));
          }
        }
      }
    });
  }
}

TEST(GroupChannel, APeerThatStaysAwayIsNamed) {
  const parallel::Store store = parallel::Store::InProcess();
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      parallel::GroupOptions options;
      options.name = "test";
      options.ranks = {0, 1, 2};
      options.deadline = std::chrono::seconds(2);
      const auto group = parallel::MakeProcessGroup(store, rank, options);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(4));
        return;
      }
      GroupChannel channel(*group);
      std::byte flag{1};
      std::vector<std::byte> in(3);
      std::vector<checkpoint::PeerChannel::Send> sends;
      std::vector<checkpoint::PeerChannel::Receive> receives;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        sends.push_back({peer, std::span(&flag, 1)});
        receives.push_back({peer, std::span(in).subspan(static_cast<size_t>(peer), 1)});
      }
      outcomes[static_cast<size_t>(rank)] =
          channel.Exchange(sends, receives, std::chrono::seconds(2));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 2}) {
    const Status& status = outcomes[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("waited for rank 1"));
  }
}

}  // namespace
}  // namespace keel::trainer
