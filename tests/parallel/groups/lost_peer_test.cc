// A peer killed in the middle of a transfer, when gloo itself forgets the operation: it is to be
// named long before the deadline.
//
// The peer is this program again, told by PEER_PORT which store to join and by the test's filter
// what to do. It asks for the data, and is then stopped, so that the transfer gets stuck half way,
// and killed.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "parallel/groups/process_group.h"
#include "parallel/store/store_server.h"

namespace keel::parallel {
namespace {

constexpr std::chrono::seconds kDeadline(120);
constexpr std::chrono::seconds kNoticedWithin(30);
constexpr int64_t kElements = 64 << 20;  // more than sockets hold

std::unique_ptr<ProcessGroup> Join(int port, int rank) {
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
  return MakeProcessGroup(store, rank, options);
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

class LostPeerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LostPeerTest, IsNamedLongBeforeTheDeadline) {
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
  ASSERT_TRUE(server.ok()) << server.status().message();
  setenv("PEER_PORT", std::to_string(server->port()).c_str(), 1);
  setenv("PEER_TRANSFER", GetParam(), 1);
  const pid_t peer = fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    execl("/proc/self/exe", "lost_peer_test", "--gtest_also_run_disabled_tests",
          "--gtest_filter=DISABLED_Peer.*", nullptr);
    _exit(127);
  }
  auto group = Join(server->port(), 0);
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
