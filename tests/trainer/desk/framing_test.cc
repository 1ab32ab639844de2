#include "trainer/desk/framing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::trainer::desk {
namespace {

using parallel::Prover;

TEST(FramingTest, FramesComeOutWholeHoweverTheyArrive) {
  const std::vector<std::string> contents = {"", "a", std::string(1000, 'x'), "last"};
  std::string stream;
  for (const std::string& content : contents) stream += Frame(content);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{16}, stream.size()}) {
    FrameReader reader(1000);
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.Feed(std::string_view(stream).substr(at, piece));
      while (auto frame = ValueOrThrow(reader.Next())) found.push_back(*frame);
    }
    EXPECT_EQ(found, contents) << piece;
  }
}

TEST(FramingTest, DamageAndSizesThatCannotBeAreErrors) {
  const std::string frame = Frame("some words");
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string damaged = frame;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    FrameReader reader(64);
    reader.Feed(damaged);
    // At once, whatever comes behind it: one that waits for more would wait for ever.
    EXPECT_EQ(reader.Next().status().code(), StatusCode::kUnavailable) << i;
  }
  FrameReader reader(9);
  reader.Feed(frame);
  EXPECT_EQ(reader.Next().status().code(), StatusCode::kUnavailable);
}

// Both ends talk until neither has anything to say; the error of the one that refused.
Status Introduce(Proof* worker, Proof* desk) {
  std::string to_desk = worker->Begin();
  EXPECT_EQ(desk->Begin(), "");
  while (!worker->done() || !desk->done()) {
    KEEL_ASSIGN_OR_RETURN(const std::string to_worker, desk->On(to_desk));
    KEEL_ASSIGN_OR_RETURN(to_desk, worker->On(to_worker));
  }
  return Status::Ok();
}

TEST(ProofTest, OnlyWhoKnowsTheSecretIsLetIn) {
  Proof worker("secret", Prover::kClient), desk("secret", Prover::kServer);
  EXPECT_TRUE(Introduce(&worker, &desk).ok());
  Proof other("wrong", Prover::kClient), again("secret", Prover::kServer);
  EXPECT_EQ(Introduce(&other, &again).code(), StatusCode::kUsage);
  EXPECT_FALSE(again.done());
  EXPECT_FALSE(other.done());
  // A desk that does not know it cannot make the worker believe it.
  Proof honest("secret", Prover::kClient);
  (void)honest.Begin();
  ASSERT_TRUE(honest.On(std::string(32, 'n')).ok());
  EXPECT_EQ(honest.On(std::string(32, 'p')).status().code(), StatusCode::kUsage);
  EXPECT_FALSE(honest.done());
  Proof nonsense("secret", Prover::kServer);
  EXPECT_EQ(nonsense.On("short").status().code(), StatusCode::kUsage);
}

}  // namespace
}  // namespace keel::trainer::desk
