// The job's store over a real socket, and what connecting to it does to the process.

#include "parallel/store/store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parallel/store/sockets.h"
#include "parallel/store/store_client.h"
#include "parallel/store/store_server.h"
#include "parallel/store/store_service.h"

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
    env.store_host = StoreHost::kLauncher;
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

// Rank 0 where no launcher serves, as under srun and mpirun.
TEST_F(StoreTest, RankZeroServesOthersJoin) {
  for (const std::string secret : {"", "a secret of enough characters"}) {
    LaunchEnv env;
    env.world_size = 2;
    env.master_addr = "127.0.0.1";
    env.master_port = PortOf(ValueOrThrow(Listen("127.0.0.1", 0)));
    env.run_id = "store_test";
    env.job_secret = secret;
    const auto zero = Store::Connect(env, kDeadline);
    ASSERT_TRUE(zero.ok()) << zero.status().message();
    env.rank = 1;
    const auto one = Store::Connect(env, kDeadline);
    ASSERT_TRUE(one.ok()) << one.status().message();
    ASSERT_TRUE(zero->Set("key", "value").ok());
    EXPECT_EQ(ValueOrThrow(one->Get("key", kDeadline)), "value");
    env.job_secret = "a secret of other characters";
    const auto stranger = Store::Connect(env, kDeadline);
    EXPECT_EQ(stranger.status().code(), StatusCode::kUsage);
    EXPECT_NE(stranger.status().message().find("KEEL_JOB_SECRET"), std::string::npos);
  }
}

// Of srun's first node, or of whatever says MASTER_ADDR: c10d's client does not say so.
TEST_F(StoreTest, ANameThatDoesNotResolveIsSaidWhoeverServes) {
  for (const StoreHost host : {StoreHost::kRankZero, StoreHost::kLauncher, StoreHost::kAgent}) {
    LaunchEnv env;
    env.rank = 1;
    env.world_size = 2;
    env.master_addr = std::string(300, 'n');  // longer than a name can be: no resolver is asked
    env.master_port = 29500;
    env.store_host = host;
    const auto store = Store::Connect(env, std::chrono::milliseconds(100));
    EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(store.status().message().find("n does not resolve on this host"), std::string::npos)
        << store.status().message();
  }
}

// Programs of PyTorch can be ranks of keel launch, too.
TEST_F(StoreTest, PyTorchsClientIsServed) {
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
  ASSERT_TRUE(server.ok()) << server.status().message();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(server->port());
  options.waitWorkers = false;
  options.timeout = kDeadline;
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto clone = store->clone();
  store->set("key", std::string("value"));
  EXPECT_EQ(store->get_to_str("key"), "value");
  EXPECT_EQ(clone->compareSet("key", std::string("value"), "new"), "new");
  EXPECT_EQ(store->add("count", 3), 3);
  EXPECT_EQ(clone->add("count", 4), 7);
  EXPECT_TRUE(store->check({"key", "count"}));
  EXPECT_FALSE(store->check({"missing"}));
  EXPECT_THROW(store->wait({"missing"}, std::chrono::milliseconds(20)), c10::DistStoreError);
  store->append("key", {'s'});
  store->multiSet({"a", "b"}, {{'1'}, {'2'}});
  EXPECT_EQ(clone->multiGet({"key", "b"}),
            (std::vector<std::vector<uint8_t>>{{'n', 'e', 'w', 's'}, {'2'}}));
  EXPECT_EQ(store->getNumKeys(), 4);
  EXPECT_TRUE(store->deleteKey("a"));
}

TEST_F(StoreTest, AClientOutlivesItsPeers) {
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
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
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
  ASSERT_TRUE(server.ok()) << server.status().message();
  const auto store = Store::Connect(ClientOf(*server), kDeadline);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ExpectThatABrokenPipeIsAnError();
  EXPECT_EQ(handled, 1);
}

TEST_F(StoreTest, KeysOfOneRunAreSeenByAllItsConnectionsAndByNoOtherRun) {
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
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

// A rank that waited asked 20 times a second.
TEST_F(StoreTest, AWaitIsOneQuestionHoweverLongItTakes) {
  const Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  size_t asked = 0;  // bytes that came while the wait went on
  std::thread server([&] {
    Socket peer;
    while (peer.fd() < 0) peer = Socket(accept(listener.fd(), nullptr, nullptr));
    StoreService service("");
    const auto id = service.Open();
    std::array<char, 4096> heard{};
    bool waits = false;
    for (ssize_t size; (size = recv(peer.fd(), heard.data(), heard.size(), 0)) > 0;) {
      if (waits) asked += static_cast<size_t>(size);
      ASSERT_TRUE(service.Receive(id, {heard.data(), static_cast<size_t>(size)}).ok());
      std::string& out = service.Output(id);
      waits = heard[0] == static_cast<char>(StoreQuery::kWait);
      send(peer.fd(), out.data(), out.size(), MSG_NOSIGNAL);
      out.clear();
      if (!waits) continue;
      pollfd polled = {peer.fd(), POLLIN, 0};
      if (poll(&polled, 1, 300) > 0) continue;
      const auto other = service.Open();
      ASSERT_TRUE(
          service
              .Receive(other, WireWriter().Pod(StoreQuery::kValidate).Pod(kStoreMagic).bytes() +
                                  WireWriter()
                                      .Pod(StoreQuery::kSet)
                                      .Text("store_test/attempt_0/key")
                                      .Text("value")
                                      .bytes())
              .ok());
      send(peer.fd(), out.data(), out.size(), MSG_NOSIGNAL);
      out.clear();
      waits = false;
    }
  });
  LaunchEnv env;
  env.master_addr = "127.0.0.1";
  env.master_port = PortOf(listener);
  env.store_host = StoreHost::kLauncher;
  env.run_id = "store_test";
  {
    const auto store = Store::Connect(env, kDeadline);
    EXPECT_TRUE(store.ok()) << store.status().message();
    if (store.ok()) {
      EXPECT_EQ(ValueOrThrow(store->Get("key", kDeadline)), "value");
    }
  }
  server.join();
  EXPECT_EQ(asked, 0u);
}

// The second stood behind the first for as long as that waited, though its key was there.
TEST_F(StoreTest, TwoWaitsOnOneConnectionTakeTurns) {
  const auto server = StoreServer::Start({.host = "127.0.0.1"});
  ASSERT_TRUE(server.ok()) << server.status().message();
  LaunchEnv env = ClientOf(*server);
  auto client = ValueOrThrow(
      StoreClient::Connect({env.master_addr, env.master_port, {}}, kDeadline, kDeadline));
  ASSERT_TRUE(client->Set("there", "value").ok());
  std::atomic<bool> first_ended = false;
  std::thread first([&] {
    EXPECT_TRUE(client->Wait({"late"}, kDeadline).ok());
    first_ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits by now, or does not
  EXPECT_TRUE(client->Wait({"there"}, kDeadline).ok());
  EXPECT_FALSE(first_ended);
  const auto never = client->Wait({"never"}, std::chrono::milliseconds(100));
  EXPECT_EQ(never.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(first_ended);
  ASSERT_TRUE(client->Set("late", "value").ok());
  first.join();
}

TEST_F(StoreTest, ManyKeysAtATimeAreThoseOfTheirPrefix) {
  StoreServerOptions options;
  options.host = "127.0.0.1";
  const StoreServer server = ValueOrThrow(StoreServer::Start(std::move(options)));
  const Store store = ValueOrThrow(Store::Connect(ClientOf(server), kDeadline));
  const Store part = store.WithPrefix("a").WithPrefix("b");
  const Store again = ValueOrThrow(part.Clone());
  ASSERT_TRUE(part.SetAll({"one", "two"}, {"1", "2"}).ok());
  EXPECT_EQ(ValueOrThrow(again.Get("two", kDeadline)), "2");
  EXPECT_EQ(ValueOrThrow(store.Get("a/b/one", kDeadline)), "1");
  using Values = std::vector<std::optional<std::string>>;
  constexpr std::chrono::milliseconds kAtOnce{0};
  EXPECT_EQ(ValueOrThrow(again.Look({"two", "three", "one"}, kAtOnce)),
            (Values{"2", std::nullopt, "1"}));
  ASSERT_TRUE(again.DeleteAll({"one", "three"}).ok());
  EXPECT_EQ(ValueOrThrow(part.Look({"one", "two"}, kAtOnce)), (Values{std::nullopt, "2"}));
  // With patience, once all are there; at its end, what is there.
  std::thread later([&store] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(store.Set("a/b/three", "3").ok());
  });
  EXPECT_EQ(ValueOrThrow(again.Look({"two", "three"}, kDeadline)), (Values{"2", "3"}));
  later.join();
  EXPECT_EQ(ValueOrThrow(again.Look({"two", "four"}, std::chrono::milliseconds(5))),
            (Values{"2", std::nullopt}));
  // A store of c10d's takes and gives them one by one.
  const Store local = Store::InProcess().WithPrefix("p");
  ASSERT_TRUE(local.SetAll({"one", "two"}, {"1", "2"}).ok());
  EXPECT_EQ(ValueOrThrow(local.Get("two", kDeadline)), "2");
  EXPECT_TRUE(ValueOrThrow(local.Look({"one"}, kDeadline)).empty());
  ASSERT_TRUE(local.DeleteAll({"one", "two"}).ok());
  EXPECT_FALSE(local.Get("two", std::chrono::milliseconds(0)).ok());
}

}  // namespace
}  // namespace keel::parallel
