#include "trainer/run/group_channel.h"

#include <gmock/gmock.h>

#include <barrier>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/support/ranks.h"

namespace keel::trainer {
namespace {

using ::testing::AnyOf;
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

int64_t Sockets() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the one of this iteration is
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

// Of ranks in a ring, of which each has something for the next alone.
int64_t SocketsOfARing(int world, bool lazy) {
  const parallel::Store store = parallel::Store::InProcess();
  std::barrier sent(world + 1), counted(world + 1);
  std::vector<std::thread> threads;
  const int64_t before = Sockets();
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      parallel::GroupOptions options;
      options.name = "ring";
      for (int r = 0; r < world; ++r) options.ranks.push_back(r);
      options.deadline = std::chrono::seconds(60);
      options.lazy = lazy;
      const auto group = parallel::MakeProcessGroup(store, rank, options);
      GroupChannel channel(*group);
      const int next = (rank + 1) % world, last = (rank + world - 1) % world;
      const std::vector<std::byte> out = Message(rank, next, 0, 1000);
      std::vector<std::byte> in(1000);
      const checkpoint::PeerChannel::Send send{next, out};
      const checkpoint::PeerChannel::Receive receive{last, in};
      const Status status = channel.Exchange({&send, 1}, {&receive, 1}, std::chrono::seconds(60));
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(in, Message(last, rank, 0, 1000));
      sent.arrive_and_wait();
      counted.arrive_and_wait();
    });
  }
  sent.arrive_and_wait();
  const int64_t found = Sockets() - before;
  counted.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(GroupChannel, RanksOfALazyGroupConnectWithWhomTheyTalk) {
  constexpr int kWorld = 8;
  const int64_t mesh = SocketsOfARing(kWorld, false), ring = SocketsOfARing(kWorld, true);
  // Both ends of each pair are in this process, and each rank listens.
  EXPECT_GE(mesh, kWorld * (kWorld - 1));
  EXPECT_LE(ring, 2 * kWorld + 2 * kWorld);
}

class APeerThatStaysAway : public ::testing::TestWithParam<bool> {};

TEST_P(APeerThatStaysAway, IsNamed) {
  const bool lazy = GetParam();
  const parallel::Store store = parallel::Store::InProcess();
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      parallel::GroupOptions options;
      options.lazy = lazy;
      options.name = "test";
      options.ranks = {0, 1, 2};
      options.deadline = std::chrono::seconds(1);
      const auto group = parallel::MakeProcessGroup(store, rank, options);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(2));
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
          channel.Exchange(sends, receives, std::chrono::seconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 2}) {
    const Status& status = outcomes[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
    // A connection that is not made holds up rank 0, so that rank 2 may come to wait for rank 0.
    const char* const another = lazy && rank == 2 ? "waited for rank 0" : "waited for rank 1";
    EXPECT_THAT(status.message(), AnyOf(HasSubstr("waited for rank 1"), HasSubstr(another)));
  }
}

INSTANTIATE_TEST_SUITE_P(MeshAndLazy, APeerThatStaysAway, ::testing::Bool());

}  // namespace
}  // namespace keel::trainer
