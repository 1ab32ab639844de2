#include "library/store_coordinator.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parallel/store/store_server.h"

namespace keel::library {
namespace {

using parallel::StoreClient;
using parallel::StoreServer;
using std::chrono::milliseconds;

TEST(StoreCoordinatorTest, AddressesAreReadAndRefusedByName) {
  for (const auto& [text, host, port] : {std::tuple{"10.0.0.1:29500", "10.0.0.1", 29500},
                                         {"node-1:1", "node-1", 1},
                                         {"[::1]:80", "::1", 80}}) {
    const auto address = ParseStoreAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->host, host);
    EXPECT_EQ(address->port, port);
  }
  for (const char* text : {"", "host", ":1", "host:", "host:0", "host:70000", "host:1x"}) {
    EXPECT_EQ(ParseStoreAddress(text).status().code(), StatusCode::kUsage) << text;
  }
}

// The collectives of the checkpoint over it, with ranks as threads; a job does not see another's
// keys, and leaves none.
TEST(StoreCoordinatorTest, RanksAgreeOverAStore) {
  StoreServer server = ValueOrThrow(StoreServer::Start({.host = "127.0.0.1"}));
  const auto connect = [&] {
    return ValueOrThrow(StoreClient::Connect({"127.0.0.1", server.port(), ""}, milliseconds(10'000),
                                             milliseconds(10'000)));
  };
  constexpr int kWorld = 3;
  std::vector<std::thread> ranks;
  std::vector<std::string> heard(kWorld);
  std::vector<Status> agreed(kWorld);
  for (int r = 0; r < kWorld; ++r) {
    ranks.emplace_back([&, r] {
      StoreCoordinator coordinator(connect(), "job/", r, kWorld);
      heard[r] = ValueOrThrow(
          checkpoint::Broadcast(coordinator, "word", r == 0 ? "yes" : "", milliseconds(10'000)));
      const Status mine = r == 1 ? Status(StatusCode::kNoSpace, "full") : Status::Ok();
      agreed[r] = checkpoint::AgreeOn(coordinator, "vote", mine, milliseconds(10'000));
      const auto all = ValueOrThrow(
          checkpoint::AllGather(coordinator, "all", std::to_string(r), milliseconds(10'000)));
      EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "2"}));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_EQ(heard[r], "yes");
    EXPECT_EQ(agreed[r].message(), "rank 1: full");
    EXPECT_EQ(agreed[r].code(), StatusCode::kNoSpace);
  }
  StoreCoordinator other(connect(), "other/", 0, 1);
  EXPECT_EQ(other.Get("word", milliseconds(1)).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(other.PutAll({"a", "b"}, {"1", "2"}).ok());
  const auto seen = ValueOrThrow(other.Look({"a", "c", "b"}, milliseconds(1)));
  EXPECT_EQ(seen, (std::vector<std::optional<std::string>>{"1", {}, "2"}));
  ASSERT_TRUE(other.DeleteAll({"a", "b"}).ok());
  EXPECT_FALSE(ValueOrThrow(other.Look({"a"}, milliseconds(0)))[0].has_value());
}

}  // namespace
}  // namespace keel::library
