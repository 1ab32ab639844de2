// A peer killed in the middle of a transfer, when gloo itself forgets the operation: it is to be
// named long before the deadline. So is one that only stands still, or never comes, once somebody
// else has given the group up.
//
// The peer is this program again, told by PEER_PORT which store to join and by the test's filter
// what to do. It asks for the data, and is then stopped, so that the transfer gets stuck half way,
// and killed.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "parallel/groups/link_group.h"
#include "parallel/store/store_server.h"

namespace keel::parallel {
namespace {

constexpr std::chrono::seconds kDeadline(120);
constexpr std::chrono::seconds kNoticedWithin(30);
constexpr int64_t kElements = 64 << 20;  // more than sockets hold

std::unique_ptr<ProcessGroup> Join(int port, int rank,
                                   const std::atomic<bool>* given_up = nullptr) {
  LaunchEnv env;
  env.rank = rank;
  env.world_size = 2;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  env.store_host = StoreHost::kLauncher;
  const Store store = ValueOrThrow(Store::Connect(env, kDeadline));
  GroupOptions options;
  options.name = "pair";
  options.ranks = {0, 1};
  options.deadline = kDeadline;
  return MakeLinkGroup(store, rank, options, given_up);
}

void Transfer(ProcessGroup& group, const std::string& how) {
  at::Tensor data = at::ones({kElements});
  if (how == "broadcast") {
    group.Broadcast(data, 0);
  } else if (group.rank() == 0) {
    group.SendAsync(data, 1, 0)->Wait();
  } else {
    group.RecvAsync(data, 0, 0)->Wait();
  }
}

// Run by the parent's fork alone.
TEST(DISABLED_Peer, AsksAndStops) {
  const char* port = getenv("PEER_PORT");
  const char* how = getenv("PEER_TRANSFER");
  ASSERT_TRUE(port != nullptr && how != nullptr);
  const auto group = Join(std::atoi(port), 1);
  std::thread stopper([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    kill(getpid(), SIGSTOP);
  });
  Transfer(*group, how);
  stopper.join();
}

class LostPeerTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    server_ =
        std::make_unique<StoreServer>(ValueOrThrow(StoreServer::Start({.host = "127.0.0.1"})));
  }

  // The peer, for a transfer.
  pid_t StartPeer(const char* transfer) {
    setenv("PEER_PORT", std::to_string(server_->port()).c_str(), 1);
    setenv("PEER_TRANSFER", transfer, 1);
    const pid_t peer = fork();
    if (peer == 0) {
      execl("/proc/self/exe", "lost_peer_test", "--gtest_also_run_disabled_tests",
            "--gtest_filter=DISABLED_Peer.*", nullptr);
      _exit(127);
    }
    return peer;
  }

  std::unique_ptr<StoreServer> server_;
};

// What `wait` throws, which sets `given_up` half a second later; and how long that took then.
std::string GivenUpDuring(std::atomic<bool>& given_up, const std::function<void()>& wait,
                          std::chrono::steady_clock::duration* took) {
  std::chrono::steady_clock::time_point set;
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    set = std::chrono::steady_clock::now();
    given_up = true;
  });
  std::string message = "nothing";
  try {
    wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
    message = error.what();
  }
  const auto ended = std::chrono::steady_clock::now();
  setter.join();
  *took = ended - set;
  return message;
}

TEST_P(LostPeerTest, ThatStandsStillIsWaitedForUntilTheGroupIsGivenUp) {
  std::atomic<bool> given_up{false};
  const pid_t peer = StartPeer(GetParam());
  ASSERT_GE(peer, 0);
  auto group = Join(server_->port(), 0, &given_up);
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, WUNTRACED), peer);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::chrono::steady_clock::duration took;
  const std::string message = GivenUpDuring(
      given_up, [&] { Transfer(*group, GetParam()); }, &took);
  EXPECT_NE(message.find("in group pair on rank 0: lost a peer (it was given up)"),
            std::string::npos)
      << message;
  EXPECT_LT(took, kNoticedWithin);
  EXPECT_THROW(Transfer(*group, GetParam()), Error);  // nothing begins any more
  kill(peer, SIGKILL);
  waitpid(peer, &status, 0);
}

TEST_P(LostPeerTest, ThatNeverComesIsWaitedForUntilTheGroupIsGivenUp) {
  std::atomic<bool> given_up{false};
  std::chrono::steady_clock::duration took;
  const std::string message = GivenUpDuring(
      given_up, [&] { Join(server_->port(), 0, &given_up); }, &took);
  EXPECT_NE(message.find("connecting in group pair on rank 0"), std::string::npos) << message;
  EXPECT_NE(message.find("it was given up"), std::string::npos) << message;
  EXPECT_LT(took, kNoticedWithin);
}

TEST_P(LostPeerTest, IsNamedLongBeforeTheDeadline) {
  const pid_t peer = StartPeer(GetParam());
  ASSERT_GE(peer, 0);
  auto group = Join(server_->port(), 0);
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, WUNTRACED), peer);
  ASSERT_TRUE(WIFSTOPPED(status));

  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    killed = std::chrono::steady_clock::now();
    kill(peer, SIGKILL);
  });
  std::string message;
  try {
    Transfer(*group, GetParam());
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
    message = error.what();
  }
  group.reset();
  const auto ended = std::chrono::steady_clock::now();
  killer.join();
  waitpid(peer, &status, 0);
  for (const char* part : {"lost a peer", "group pair", "rank 0", "127.0.0.1"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_LT(ended - killed, kNoticedWithin);
}

INSTANTIATE_TEST_SUITE_P(Transfers, LostPeerTest, ::testing::Values("broadcast", "message"));

}  // namespace
}  // namespace keel::parallel
