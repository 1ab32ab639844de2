// A connection of the desk, whose other end the test holds.
#include "trainer/desk/worker_connection.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

namespace keel::trainer::desk {
namespace {

using parallel::Prover;
using parallel::Socket;

class WorkerConnectionTest : public ::testing::Test {
 protected:
  WorkerConnectionTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    worker_ = Socket(ends[0]);
    desk_.emplace(Socket(ends[1]), "secret");
  }

  void Send(std::string_view bytes) {
    ASSERT_EQ(send(worker_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // What has come from the desk, as frames.
  std::vector<std::string> Heard() {
    std::array<char, 1 << 16> buffer;
    for (ssize_t got = 0; (got = recv(worker_.fd(), buffer.data(), buffer.size(), 0)) > 0;)
      in_.Feed({buffer.data(), static_cast<size_t>(got)});
    std::vector<std::string> frames;
    while (auto frame = ValueOrThrow(in_.Next())) frames.push_back(*frame);
    return frames;
  }
  // Moves what can be moved, as the desk does.
  bool Move() {
    pollfd polled = {desk_->fd(), desk_->events(), 0};
    EXPECT_GE(poll(&polled, 1, 0), 0);
    return desk_->Move(polled.revents);
  }
  // The worker's part of the proof; the end of the desk's.
  Status Prove(const std::string& secret) {
    Proof proof(secret, Prover::kClient);
    Send(Frame(proof.Begin()));
    while (!proof.done()) {
      EXPECT_TRUE(Move());
      KEEL_ASSIGN_OR_RETURN(const std::optional<std::string> frame, desk_->Next());
      EXPECT_FALSE(frame);
      EXPECT_TRUE(Move());
      for (const std::string& answer : Heard()) {
        KEEL_ASSIGN_OR_RETURN(const std::string next, proof.On(answer));
        if (!next.empty()) Send(Frame(next));
      }
    }
    return Status::Ok();
  }

  Socket worker_;
  std::optional<WorkerConnection> desk_;
  FrameReader in_{kMostFrameBytes};
};

TEST_F(WorkerConnectionTest, FramesComeBehindTheProofInPiecesOfAnySize) {
  ASSERT_TRUE(Prove("secret").ok());
  const std::string large(1000, 'x');
  std::vector<std::string> found;
  for (const char byte : Frame("one") + Frame("") + Frame(large)) {
    Send({&byte, 1});
    ASSERT_TRUE(Move());
    while (auto frame = ValueOrThrow(desk_->Next())) found.push_back(*frame);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"one", "", large}));
}

TEST_F(WorkerConnectionTest, WhoDoesNotKnowTheSecretIsNotHeard) {
  EXPECT_EQ(Prove("wrong").code(), StatusCode::kUsage);
}

TEST_F(WorkerConnectionTest, WhatIsTooLargeForAProofIsRefusedBeforeItHasCome) {
  Send(Frame(std::string(kMostProofBytes + 1, 'x')).substr(0, 8));
  ASSERT_TRUE(Move());
  EXPECT_EQ(desk_->Next().status().code(), StatusCode::kUnavailable);
}

// An error of the run's data it is not: that would end the run, and no launcher starts such a
// worker again.
TEST_F(WorkerConnectionTest, WhatArrivesDamagedIsAFaultOfTheConnection) {
  ASSERT_TRUE(Prove("secret").ok());
  std::string damaged = Frame("some words");
  damaged.back() ^= 0x10;
  Send(damaged);
  ASSERT_TRUE(Move());
  const Status status = desk_->Next().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the desk's connection: a frame arrived damaged");
}

// What a desk's thread has under `ulimit -s 256`: it ended the run without a word.
TEST_F(WorkerConnectionTest, ItMovesOnASmallStack) {
  Send(Frame("some words"));
  pthread_attr_t small;
  ASSERT_EQ(pthread_attr_init(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, size_t{256} << 10), 0);
  pthread_t thread{};
  const auto move = [](void* test) -> void* {
    EXPECT_TRUE(static_cast<WorkerConnectionTest_ItMovesOnASmallStack_Test*>(test)->Move());
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &small, move, this), 0);
  pthread_attr_destroy(&small);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
}

TEST_F(WorkerConnectionTest, WhatTheOtherEndDoesNotTakeIsSentLater) {
  const std::string large(std::size_t{8} << 20, 'x');
  EXPECT_TRUE(desk_->all_sent());
  EXPECT_EQ(desk_->events(), POLLIN);
  desk_->Say(large);
  desk_->Say("last");
  EXPECT_EQ(desk_->events(), POLLIN | POLLOUT);
  ASSERT_TRUE(Move());
  EXPECT_FALSE(desk_->all_sent());
  ASSERT_TRUE(desk_->Move(POLLOUT));  // nothing is taken, and nothing is wrong
  std::vector<std::string> heard;
  while (!desk_->all_sent()) {
    for (std::string& frame : Heard()) heard.push_back(std::move(frame));
    ASSERT_TRUE(Move());
  }
  for (std::string& frame : Heard()) heard.push_back(std::move(frame));
  EXPECT_EQ(heard, (std::vector<std::string>{large, "last"}));
}

TEST_F(WorkerConnectionTest, OneThatIsClosedStillSaysWhatItHasAndReadsNoMore) {
  ASSERT_TRUE(Prove("secret").ok());
  desk_->Say("why");
  desk_->Close();
  EXPECT_TRUE(desk_->closing());
  const auto before = desk_->silence();
  Send(Frame("word"));
  ASSERT_TRUE(Move());
  EXPECT_FALSE(ValueOrThrow(desk_->Next()));
  EXPECT_GE(desk_->silence(), before);  // nor does it count as a sign of life
  EXPECT_TRUE(desk_->all_sent());
  EXPECT_EQ(Heard(), std::vector<std::string>{"why"});
}

TEST_F(WorkerConnectionTest, ItIsGoneWhenTheOtherEndIs) {
  ASSERT_TRUE(Move());
  worker_ = Socket();
  EXPECT_FALSE(Move());
  desk_->Say("word");
  EXPECT_FALSE(desk_->Move(POLLOUT));
}

}  // namespace
}  // namespace keel::trainer::desk
