// The job's store over real sockets, between StoreServer and StoreClient.

#include "parallel/store/store_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "parallel/store/sockets.h"
#include "parallel/store/store_client.h"

namespace keel::parallel {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit(60'000);
constexpr char kJobSecret[] = "a secret of enough characters";

StoreServer Serve(StoreServerOptions options) {
  return ValueOrThrow(StoreServer::Start(std::move(options)));
}

Result<std::unique_ptr<StoreClient>> Reach(const StoreServer& server,
                                           const std::string& secret = "",
                                           milliseconds deadline = kLimit) {
  return StoreClient::Connect({"127.0.0.1", server.port(), secret}, deadline, kLimit);
}

std::unique_ptr<StoreClient> Client(const StoreServer& server, const std::string& secret = "") {
  return ValueOrThrow(Reach(server, secret));
}

// The addresses at which something listens on `port`, as the kernel prints them.
std::vector<std::string> ListenersAt(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        found.push_back(local.substr(0, colon));
    }
  }
  return found;
}

TEST(StoreServerTest, OfOneNodeListensOnLoopbackAlone) {
  const StoreServer server = Serve({.host = WhereToListen("127.0.0.1", true)});
  EXPECT_EQ(ListenersAt(server.port()), std::vector<std::string>{"0100007F"});
  EXPECT_EQ(WhereToListen("127.0.0.1", false), "127.0.0.1");
  EXPECT_EQ(WhereToListen("localhost", false), "localhost");
  EXPECT_EQ(WhereToListen("192.0.2.1", true), "192.0.2.1");
  EXPECT_EQ(WhereToListen("192.0.2.1", false), "");
}

TEST(StoreServerTest, OfSeveralNodesListensEverywhere) {
  const StoreServer server = Serve({.host = ""});
  const auto at = ListenersAt(server.port());
  ASSERT_EQ(at.size(), 1);
  EXPECT_EQ(at[0].find_first_not_of('0'), std::string::npos) << at[0];
  EXPECT_TRUE(Client(server)->Set("key", "value").ok());
}

TEST(StoreServerTest, AnAddressOfAnotherHostAndATakenPortAreNamed) {
  const auto other = StoreServer::Start({.host = "192.0.2.1"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("bind 192.0.2.1:0"), std::string::npos)
      << other.status().message();
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto second = StoreServer::Start({.host = "127.0.0.1", .port = server.port()});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("in use"), std::string::npos)
      << second.status().message();
}

TEST(StoreServerTest, WhatOneClientSetsAnotherSees) {
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto first = Client(server);
  const auto second = Client(server);
  const std::string large(3 << 20, 'x');
  ASSERT_TRUE(first->Set("large", large).ok());
  // A set has no answer: only over its own connection it is certain to have come.
  EXPECT_EQ(ValueOrThrow(first->TryGet("large")), large);
  EXPECT_EQ(ValueOrThrow(second->Get("large")), large);
  EXPECT_EQ(ValueOrThrow(second->TryGet("missing")), std::nullopt);
  EXPECT_EQ(ValueOrThrow(second->Get("missing")), "");
  EXPECT_EQ(ValueOrThrow(second->Add("count", 2)), 2);
  EXPECT_EQ(ValueOrThrow(first->Add("count", -5)), -3);
  EXPECT_EQ(ValueOrThrow(first->CompareSet("count", "-3", "4")), "4");
  EXPECT_TRUE(ValueOrThrow(second->Has({"count", "large"})));
  EXPECT_FALSE(ValueOrThrow(second->Has({"count", "missing"})));
  ASSERT_TRUE(second->Append("count", "2").ok());
  EXPECT_EQ(ValueOrThrow(second->Add("count", 0)), 42);
  ASSERT_TRUE(second->MultiSet({"a", "b"}, {"1", "2"}).ok());
  EXPECT_EQ(ValueOrThrow(second->MultiGet({"b", "a"})), (std::vector<std::string>{"2", "1"}));
  // More than are asked at a time, with values of all sizes and gaps between them.
  std::vector<std::string> many;
  for (size_t i = 0; i < 2 * StoreClient::kMostAtOnce + 5; ++i) {
    many.push_back("many/" + std::to_string(i));
    if (i % 7 == 0) continue;
    ASSERT_TRUE(first->Set(many.back(), std::string(i * i % 90'000, 'v')).ok());
  }
  EXPECT_TRUE(ValueOrThrow(first->Has({many[1]})));
  const auto found = ValueOrThrow(second->TryGetAll(many));
  ASSERT_EQ(found.size(), many.size());
  for (size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(found[i].has_value(), i % 7 != 0) << i;
    if (found[i]) {
      ASSERT_EQ(found[i]->size(), i * i % 90'000) << i;
    }
  }
  ASSERT_TRUE(second->DeleteAll(many).ok());
  EXPECT_EQ(ValueOrThrow(first->TryGet(many[1])), std::nullopt);
  EXPECT_TRUE(ValueOrThrow(second->TryGetAll({})).empty());
  EXPECT_EQ(ValueOrThrow(second->NumKeys()), 4);
  EXPECT_TRUE(ValueOrThrow(second->Delete("large")));
  EXPECT_FALSE(ValueOrThrow(second->Delete("large")));
}

TEST(StoreServerTest, AWaitEndsWithTheKeyOrWithItsDeadline) {
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto waiting = Client(server);
  const Status late = waiting->Wait({"key"}, milliseconds(20));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(late.message().find("key"), std::string::npos);
  auto done = std::async(std::launch::async, [&] { return waiting->Wait({"key"}, kLimit); });
  ASSERT_TRUE(Client(server)->Set("key", "").ok());
  EXPECT_TRUE(done.get().ok());
  // The connection is in order after both.
  EXPECT_EQ(ValueOrThrow(waiting->Add("count", 1)), 1);
}

// Over one connection: a wait kept all others out until its end.
TEST(StoreServerTest, AWaitLetsOthersCallAndGoesOn) {
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto client = Client(server);
  std::array<std::future<Status>, 2> waits;
  for (auto& one : waits)
    one = std::async(std::launch::async, [&] { return client->Wait({"a", "b"}, kLimit); });
  for (int i = 1; i <= 200; ++i) {
    EXPECT_EQ(ValueOrThrow(client->Add("count", 1)), i);
    if (i == 100) {
      ASSERT_TRUE(client->Set("a", "").ok());
    }
  }
  for (auto& one : waits) EXPECT_EQ(one.wait_for(milliseconds(0)), std::future_status::timeout);
  ASSERT_TRUE(client->Set("b", "").ok());
  for (auto& one : waits) EXPECT_TRUE(one.get().ok());
  EXPECT_EQ(ValueOrThrow(client->Add("count", 1)), 201);
}

// At once, and not at the wait's deadline.
TEST(StoreServerTest, AWaitEndsWithTheServer) {
  std::optional<StoreServer> server(Serve({.host = "127.0.0.1"}));
  const auto client = Client(*server);
  auto wait = std::async(std::launch::async, [&] { return client->Wait({"key"}, kLimit); });
  std::this_thread::sleep_for(milliseconds(50));
  server.reset();
  const Status status = wait.get();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("closed"), std::string::npos) << status.message();
  EXPECT_EQ(client->Set("key", "").code(), StatusCode::kUnavailable);
}

TEST(StoreServerTest, ManyClientsAtOnceCountRight) {
  const StoreServer server = Serve({.host = "127.0.0.1", .secret = kJobSecret});
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      const auto client = Client(server, kJobSecret);
      for (int n = 0; n < 100; ++n) EXPECT_TRUE(client->Add("count", 1).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ValueOrThrow(Client(server, kJobSecret)->Add("count", 0)), 1600);
}

TEST(StoreServerTest, WithASecretWhoDoesNotKnowItIsTurnedAwayAtOnce) {
  std::mutex mutex;
  std::vector<std::string> refusals;
  const StoreServer server =
      Serve({.host = "127.0.0.1",
             .secret = kJobSecret,
             .on_refusal = [&](const std::string& peer, const std::string& why) {
               const std::lock_guard lock(mutex);
               refusals.push_back(peer + " " + why);
             }});
  for (const auto& [secret, why] :
       {std::pair("", "it asks for the job's secret"),
        std::pair("a secret of other characters", "is not the one that the host")}) {
    const auto client = Reach(server, secret);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.status().code(), StatusCode::kUsage);
    EXPECT_NE(client.status().message().find(why), std::string::npos) << client.status().message();
  }
  EXPECT_TRUE(Client(server, kJobSecret)->Set("key", "value").ok());
  const std::lock_guard lock(mutex);
  ASSERT_EQ(refusals.size(), 2);
  for (const std::string& text : refusals) EXPECT_TRUE(text.starts_with("127.0.0.1:")) << text;
}

TEST(StoreServerTest, WithoutASecretWhoHasOneIsToldSo) {
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto client = Reach(server, kJobSecret);
  EXPECT_EQ(client.status().code(), StatusCode::kUsage);
  EXPECT_NE(client.status().message().find("unset it here"), std::string::npos);
}

// Who takes the store's place does not learn the secret, and is not believed.
TEST(StoreServerTest, AFalseStoreIsFoundOut) {
  const Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  std::thread impostor([&] {
    Socket peer;
    while (peer.fd() < 0) peer = Socket(accept(listener.fd(), nullptr, nullptr));
    const std::string nonsense(64, 'x');  // a number, and a proof
    send(peer.fd(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    std::array<char, 256> heard{};
    std::string all;
    for (ssize_t size; (size = recv(peer.fd(), heard.data(), heard.size(), 0)) > 0;)
      all.append(heard.data(), static_cast<size_t>(size));
    EXPECT_EQ(all.find(kJobSecret), std::string::npos);
  });
  const auto client =
      StoreClient::Connect({"127.0.0.1", PortOf(listener), kJobSecret}, kLimit, kLimit);
  impostor.join();
  EXPECT_EQ(client.status().code(), StatusCode::kUsage);
  EXPECT_NE(client.status().message().find("does not know the job's secret"), std::string::npos)
      << client.status().message();
}

TEST(StoreServerTest, StrangersDisturbNobody) {
  const StoreServer server = Serve({.host = "127.0.0.1"});
  const auto client = Client(server);
  std::vector<Socket> strangers;
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "\xFF\xFF\xFF\xFF", ""}) {
    strangers.push_back(ValueOrThrow(ConnectOnce("127.0.0.1", server.port(), kLimit)));
    send(strangers.back().fd(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  EXPECT_EQ(ValueOrThrow(client->Add("count", 1)), 1);
}

TEST(StoreServerTest, HalfOpenConnectionsKeepNobodyOut) {
  const StoreServer server = Serve({.host = "127.0.0.1", .secret = kJobSecret});
  std::vector<Socket> strangers;
  while (strangers.size() < 600)  // more than it holds
    strangers.push_back(ValueOrThrow(ConnectOnce("127.0.0.1", server.port(), kLimit)));
  // Long before the strangers' time is over.
  const auto client = Reach(server, kJobSecret, milliseconds(5'000));
  ASSERT_TRUE(client.ok()) << client.status().message();
  EXPECT_EQ(ValueOrThrow((*client)->Add("count", 1)), 1);
}

TEST(StoreServerTest, AServerThatEndedIsAnErrorOfTheNextCall) {
  const auto before = std::signal(SIGPIPE, SIG_DFL);  // which neither end may raise
  std::unique_ptr<StoreClient> client;
  {
    const StoreServer server = Serve({.host = "127.0.0.1"});
    client = Client(server);
  }
  Status status;
  for (int i = 0; i < 3; ++i) status = client->Add("count", 1).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  std::signal(SIGPIPE, before);
}

TEST(StoreServerTest, NobodyThereIsSaidAfterTheDeadline) {
  int port = 0;
  { port = Serve({.host = "127.0.0.1"}).port(); }
  const auto client =
      StoreClient::Connect({"127.0.0.1", port, ""}, milliseconds(50), milliseconds(50));
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(client.status().message().find("refused"), std::string::npos)
      << client.status().message();
}

// It takes the connection, and answers nothing.
TEST(StoreServerTest, WhoeverSaysNothingIsWaitedForNoLongerThanWhoIsNotThere) {
  const Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const auto client = std::async(std::launch::async, [&] {
    return StoreClient::Connect({"127.0.0.1", PortOf(listener), kJobSecret}, milliseconds(300),
                                std::chrono::hours(1))
        .status();
  });
  ASSERT_EQ(client.wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST(StoreServerTest, ANameThatDoesNotResolveIsSaid) {
  // Longer than a name can be: no resolver is asked.
  const std::string name(300, 'n');
  const auto client = StoreClient::Connect({name, 29500, ""}, milliseconds(0), milliseconds(50));
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(client.status().message().find("does not resolve"), std::string::npos)
      << client.status().message();
  EXPECT_FALSE(IsLoopback(name));
}

}  // namespace
}  // namespace keel::parallel
