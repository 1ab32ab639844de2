// The job's store over a real socket, and what connecting to it does to the process.

#include "parallel/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "parallel/store_server.h"

namespace keel::parallel {
namespace {

constexpr std::chrono::seconds kDeadline(30);

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::signal(SIGPIPE, SIG_DFL);
    ASSERT_NE(before_, SIG_ERR);
  }
  void TearDown() override { std::signal(SIGPIPE, before_); }

  static LaunchEnv ClientOf(const StoreServer& server) {
    LaunchEnv env;
    env.master_addr = "127.0.0.1";
    env.master_port = server.port();
    env.agent_store = true;
    env.run_id = "store_test";
    return env;
  }

 private:
  sighandler_t before_ = SIG_DFL;
};

// Ends the test program where SIGPIPE still has its default.
void ExpectThatABrokenPipeIsAnError() {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  errno = 0;
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[1]);
}

TEST_F(StoreTest, AServerOutlivesItsClients) {
  const auto server = StoreServer::Start("127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status().message();
  ExpectThatABrokenPipeIsAnError();
}

TEST_F(StoreTest, AClientOutlivesItsPeers) {
  const auto server = StoreServer::Start("127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status().message();
  std::signal(SIGPIPE, SIG_DFL);
  const auto store = Store::Connect(ClientOf(*server), kDeadline);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ExpectThatABrokenPipeIsAnError();
}

std::atomic<int> handled{0};
extern "C" void CountSignal(int) { ++handled; }

TEST_F(StoreTest, AHandlerOfTheProgramStays) {
  std::signal(SIGPIPE, CountSignal);
  const auto server = StoreServer::Start("127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status().message();
  ExpectThatABrokenPipeIsAnError();
  EXPECT_EQ(handled, 1);
}

TEST_F(StoreTest, KeysOfOneRunAreSeenByAllItsConnectionsAndByNoOtherRun) {
  const auto server = StoreServer::Start("127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status().message();
  const auto store = Store::Connect(ClientOf(*server), kDeadline);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ASSERT_TRUE(store->Set("key", "value").ok());
  const auto clone = store->Clone();
  ASSERT_TRUE(clone.ok()) << clone.status().message();
  const auto seen = clone->Get("key", kDeadline);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(*seen, "value");

  LaunchEnv restarted = ClientOf(*server);
  restarted.restart_count = 1;
  const auto other = Store::Connect(restarted, kDeadline);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->Get("key", std::chrono::milliseconds(0)).status().code(),
            StatusCode::kDeadlineExceeded);

  ASSERT_TRUE(store->Delete("key").ok());
  EXPECT_EQ(clone->Get("key", std::chrono::milliseconds(0)).status().code(),
            StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace keel::parallel
