// The job's store without sockets: bytes in, bytes out.

#include "parallel/store/store_service.h"

#include <gtest/gtest.h>

#include <string>

namespace keel::parallel {
namespace {

constexpr char kSecret[] = "a secret of enough characters";

std::string Hello() { return WireWriter().Pod(StoreQuery::kValidate).Pod(kStoreMagic).bytes(); }

class StoreServiceTest : public ::testing::Test {
 protected:
  // All of it is taken; what it says.
  std::string Ask(StoreService& service, StoreService::Connection peer, const std::string& bytes) {
    EXPECT_TRUE(service.Receive(peer, bytes).ok());
    return std::exchange(service.Output(peer), "");
  }
  StoreService::Connection Join(StoreService& service) {
    const auto peer = service.Open();
    EXPECT_EQ(Ask(service, peer, Hello()), "");
    EXPECT_TRUE(service.admitted(peer));
    return peer;
  }
};

// The page docs/formats/store.md, byte by byte: what a TCPStore of PyTorch 2.11 sends and expects.
TEST_F(StoreServiceTest, SpeaksAsTcpStoreDoes) {
  using namespace std::string_literals;
  StoreService service("");
  const auto peer = service.Open();
  EXPECT_EQ(Ask(service, peer, "\x00\xCE\xF7\x85\x3C"s), "");                   // validate
  EXPECT_EQ(Ask(service, peer, "\x0D\x01\x02\x03\x04"s), "\x01\x02\x03\x04"s);  // ping
  const std::string key = "\x02\0\0\0\0\0\0\0/k"s;
  EXPECT_EQ(Ask(service, peer, "\x01"s + key + "\x03\0\0\0\0\0\0\0abc"s), "");  // set
  EXPECT_EQ(Ask(service, peer, "\x03"s + key), "\x03\0\0\0\0\0\0\0abc"s);       // get
  EXPECT_EQ(Ask(service, peer, "\x04\x02\0\0\0\0\0\0\0/n\x05\0\0\0\0\0\0\0"s),  // add
            "\x05\0\0\0\0\0\0\0"s);
  EXPECT_EQ(Ask(service, peer, "\x05\x01\0\0\0\0\0\0\0"s + key), "\0"s);      // check: ready
  EXPECT_EQ(Ask(service, peer, "\x06\x01\0\0\0\0\0\0\0"s + key), "\0"s);      // wait: done
  EXPECT_EQ(Ask(service, peer, "\x0C"s), "\x01"s);                            // cancelled
  EXPECT_EQ(Ask(service, peer, "\x07"s), "\x02\0\0\0\0\0\0\0"s);              // number of keys
  EXPECT_EQ(Ask(service, peer, "\x08"s + key), "\x01\0\0\0\0\0\0\0"s);        // delete
  EXPECT_EQ(Ask(service, peer, "\x05\x01\0\0\0\0\0\0\0"s + key), "\x01"s);    // not ready
  EXPECT_EQ(Ask(service, peer, "\x09"s + key + "\x01\0\0\0\0\0\0\0x"s), "");  // append
  EXPECT_EQ(Ask(service, peer, "\x0A\x01\0\0\0\0\0\0\0"s + key), "\x01\0\0\0\0\0\0\0x"s);
  EXPECT_EQ(Ask(service, peer, "\x0B\x01\0\0\0\0\0\0\0"s + key + "\x01\0\0\0\0\0\0\0y"s), "");
  EXPECT_EQ(Ask(service, peer, "\x02"s + key + "\x01\0\0\0\0\0\0\0y\x01\0\0\0\0\0\0\0z"s),
            "\x01\0\0\0\0\0\0\0z"s);  // compare and set
}

TEST_F(StoreServiceTest, QueriesMayComeByteByByte) {
  StoreService service("");
  const auto peer = Join(service);
  const std::string bytes = WireWriter().Pod(StoreQuery::kSet).Text("key").Text("value").bytes() +
                            WireWriter().Pod(StoreQuery::kGet).Text("key").bytes();
  std::string answer;
  for (const char byte : bytes) answer += Ask(service, peer, std::string(1, byte));
  EXPECT_EQ(answer, WireWriter().Text("value").bytes());
}

TEST_F(StoreServiceTest, CompareSetOfAMissingKeySetsOnlyWhereNothingWasExpected) {
  StoreService service("");
  const auto peer = Join(service);
  const auto ask = [&](const char* expected, const char* value) {
    return Ask(
        service, peer,
        WireWriter().Pod(StoreQuery::kCompareSet).Text("key").Text(expected).Text(value).bytes());
  };
  EXPECT_EQ(ask("old", "new"), WireWriter().Text("old").bytes());
  EXPECT_EQ(ask("", "first"), WireWriter().Text("first").bytes());
  EXPECT_EQ(ask("old", "new"), WireWriter().Text("first").bytes());
  EXPECT_EQ(ask("first", "new"), WireWriter().Text("new").bytes());
}

TEST_F(StoreServiceTest, AWaitEndsWhenTheLastKeyIsThere) {
  StoreService service("");
  const auto waiting = Join(service);
  const auto other = Join(service);
  EXPECT_EQ(Ask(service, waiting, WireWriter().Pod(StoreQuery::kWait).Texts({"a", "b"}).bytes()),
            "");
  EXPECT_EQ(Ask(service, other, WireWriter().Pod(StoreQuery::kSet).Text("b").Text("").bytes()), "");
  EXPECT_EQ(service.Output(waiting), "");
  service.TakeReady();
  Ask(service, other, WireWriter().Pod(StoreQuery::kAdd).Text("a").Pod(int64_t{1}).bytes());
  EXPECT_EQ(service.Output(waiting), std::string(1, kWaitDone));
  EXPECT_EQ(service.TakeReady(), (std::vector<StoreService::Connection>{other, waiting}));
}

TEST_F(StoreServiceTest, WhatIsNoQueryEndsTheConnection) {
  const std::string huge = WireWriter().Pod(StoreQuery::kGet).Pod(kLongestText + 1).bytes();
  const std::string keys = WireWriter().Pod(StoreQuery::kWait).Pod(kMostKeys + 1).bytes();
  for (const std::string& bytes :
       {std::string("\xFF"), std::string("\x0E"), Hello(), huge, keys,
        WireWriter().Pod(StoreQuery::kMultiSet).Pod(kMostKeys + 1).bytes()}) {
    StoreService service("");
    EXPECT_FALSE(service.Receive(Join(service), bytes).ok());
  }
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n"), WireWriter().Pod(StoreQuery::kPing).Pod(1).bytes(),
        WireWriter().Pod(StoreQuery::kValidate).Pod(1).bytes()}) {
    StoreService service("");
    const auto peer = service.Open();
    EXPECT_FALSE(service.Receive(peer, bytes).ok());
    EXPECT_EQ(service.Output(peer), "");
  }
}

class StoreSecretTest : public StoreServiceTest {
 protected:
  // As far as the proof, which it gives with `secret`.
  Status Prove(StoreService& service, StoreService::Connection peer, const std::string& secret) {
    const StoreNonce ours = MakeStoreNonce();
    const std::string asked = Ask(
        service, peer, WireWriter().Pod(StoreQuery::kProve).Pod(kProofVersion).Pod(ours).bytes());
    StoreNonce theirs{};
    EXPECT_EQ(asked.size(), theirs.size());
    std::memcpy(theirs.data(), asked.data(), theirs.size());
    const Status status = service.Receive(
        peer, WireWriter().Pod(StoreProof(secret, Prover::kClient, ours, theirs)).bytes());
    if (status.ok()) {
      EXPECT_EQ(service.Output(peer),
                WireWriter().Pod(StoreProof(secret, Prover::kServer, ours, theirs)).bytes());
      service.Output(peer).clear();
    }
    return status;
  }
};

TEST_F(StoreServiceTest, AWaitIsAnsweredOnceWhenAllKeysAreThere) {
  StoreService service("");
  const auto first = Join(service), second = Join(service), third = Join(service);
  const auto setter = Join(service);
  const auto set = [&](const char* key) {
    EXPECT_EQ(Ask(service, setter, WireWriter().Pod(StoreQuery::kSet).Text(key).Text("").bytes()),
              "");
  };
  const auto wait = [](const std::vector<std::string>& keys) {
    return WireWriter().Pod(StoreQuery::kWait).Texts(keys).bytes();
  };
  const std::string done(1, '\0'), cancelled(1, '\1');
  EXPECT_EQ(Ask(service, first, wait({"a", "b", "c"})), "");
  EXPECT_EQ(Ask(service, second, wait({"b"})), "");
  EXPECT_EQ(Ask(service, third, wait({"b", "c"})), "");
  set("c");
  set("b");
  EXPECT_EQ(std::exchange(service.Output(second), ""), done);
  EXPECT_EQ(std::exchange(service.Output(third), ""), done);
  EXPECT_EQ(service.Output(first), "");
  // What is missing again, once the last one comes, is waited for again.
  EXPECT_EQ(Ask(service, setter, WireWriter().Pod(StoreQuery::kDelete).Text("b").bytes()),
            WireWriter().Pod(int64_t{1}).bytes());
  set("a");
  EXPECT_EQ(service.Output(first), "");
  set("b");
  EXPECT_EQ(std::exchange(service.Output(first), ""), done);
  // Who has gone, or waits no more, is not told; and there are two answers if both were under way.
  EXPECT_EQ(Ask(service, first, wait({"d"})), "");
  EXPECT_EQ(Ask(service, second, wait({"d"})), "");
  EXPECT_EQ(Ask(service, second, WireWriter().Pod(StoreQuery::kCancelWait).bytes()), cancelled);
  service.Close(first);
  set("d");
  EXPECT_EQ(service.Output(second), "");
  EXPECT_EQ(Ask(service, second, wait({"d"})), done);
}

TEST_F(StoreSecretTest, WhoProvesItIsServed) {
  StoreService service(kSecret);
  const auto peer = service.Open();
  ASSERT_TRUE(Prove(service, peer, kSecret).ok());
  EXPECT_FALSE(service.admitted(peer));
  EXPECT_EQ(Ask(service, peer, Hello()), "");
  EXPECT_TRUE(service.admitted(peer));
  EXPECT_EQ(Ask(service, peer, WireWriter().Pod(StoreQuery::kNumKeys).bytes()),
            WireWriter().Pod(int64_t{0}).bytes());
}

TEST_F(StoreSecretTest, WhoDoesNotIsToldWhyAndServedNothing) {
  StoreService service(kSecret);
  const auto silent = service.Open();
  EXPECT_FALSE(
      service.Receive(silent, Hello() + WireWriter().Pod(StoreQuery::kNumKeys).bytes()).ok());
  EXPECT_EQ(service.Output(silent), kNeedsSecret);
  const auto wrong = service.Open();
  EXPECT_FALSE(Prove(service, wrong, "a secret of other characters").ok());
  EXPECT_EQ(service.Output(wrong), kWrongSecret);
  StoreService open("");
  const auto known = open.Open();
  EXPECT_FALSE(
      open.Receive(
              known,
              WireWriter().Pod(StoreQuery::kProve).Pod(kProofVersion).Pod(StoreNonce()).bytes())
          .ok());
  EXPECT_EQ(open.Output(known), kHasNoSecret);
  for (const auto refusal : {kNeedsSecret, kWrongSecret, kHasNoSecret})
    EXPECT_TRUE(refusal.starts_with(kRefusalMark) && ExplainRefusal(refusal));
}

// A proof that was overheard is of no use: the server's part of it is another each time.
TEST_F(StoreSecretTest, AProofHoldsForOneConnection) {
  StoreService service(kSecret);
  const auto listened_to = service.Open();
  const StoreNonce ours{};
  const std::string ask = WireWriter().Pod(StoreQuery::kProve).Pod(kProofVersion).Pod(ours).bytes();
  const std::string first = Ask(service, listened_to, ask);
  StoreNonce theirs{};
  std::memcpy(theirs.data(), first.data(), theirs.size());
  const std::string proof =
      WireWriter().Pod(StoreProof(kSecret, Prover::kClient, ours, theirs)).bytes();
  ASSERT_TRUE(service.Receive(listened_to, proof).ok());
  const auto replay = service.Open();
  EXPECT_NE(Ask(service, replay, ask), first);
  EXPECT_FALSE(service.Receive(replay, proof).ok());
  // Nor is the answer of one end a proof of the other.
  EXPECT_NE(StoreProof(kSecret, Prover::kClient, ours, theirs),
            StoreProof(kSecret, Prover::kServer, ours, theirs));
}

TEST_F(StoreSecretTest, AStrangerCannotFillTheMemory) {
  StoreService service(kSecret);
  const auto peer = service.Open();
  const std::string much(1 << 20, '\0');
  EXPECT_FALSE(service.Receive(peer, "K\x01" + much).ok());
}

}  // namespace
}  // namespace keel::parallel
