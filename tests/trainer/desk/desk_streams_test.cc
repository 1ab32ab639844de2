#include "trainer/desk/desk_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/data/response_wire.h"

namespace keel::trainer::desk {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

StreamOptions Options(int64_t batch, int64_t end = 100) {
  StreamOptions options;
  options.protocol.batch = batch;
  options.protocol.end = end;
  options.prompt = [](int64_t position) {
    rl::Prompt prompt;
    prompt.id = 1000 + position;
    prompt.tokens = {static_cast<int32_t>(position)};
    return prompt;
  };
  return options;
}

// Who is to do what, as "worker position".
std::vector<std::string> Orders(const std::vector<std::pair<int64_t, Assign>>& orders) {
  std::vector<std::string> found;
  for (const auto& [worker, order] : orders)
    found.push_back(std::to_string(worker) + " " + std::to_string(order.id.position));
  return found;
}

Done DoneOf(const Assign& order) {
  rl::Response response;
  response.position = order.id.position;
  response.sample = order.id.sample;
  response.tokens = {5};
  response.log_probs = {-1};
  Done done;
  done.stream = order.stream;
  done.lease = order.lease;
  done.spans = {{0, 1}};
  done.response = rl::EncodeResponses(std::span(&response, 1));
  return done;
}

class DeskStreamsTest : public ::testing::Test {
 protected:
  DeskStreamsTest() {
    ThrowIfError(streams_.Open(Stream::kTrain, Options(2), {}, 1));
    ThrowIfError(streams_.Open(Stream::kValidation, Options(1, 1), {}, 1));
  }
  // In both streams, serving version 1.
  void Join(int64_t worker, int64_t capacity) {
    for (const Stream which : streams_.All()) streams_.Join(which, worker, capacity, 1);
  }
  DeskStreams streams_;
};

// The desk's numbers are those of connections, and grow; a protocol's begin with 1 in each stream.
TEST_F(DeskStreamsTest, WorkersHaveTheDesksNumbersInEveryStream) {
  streams_.Join(Stream::kTrain, 70, 1, 1);
  streams_.Join(Stream::kTrain, 40, 1, 1);
  streams_.Join(Stream::kValidation, 40, 1, 1);
  const auto orders = streams_.AssignAll();
  EXPECT_THAT(Orders(orders), ElementsAre("70 0", "40 1", "40 0"));
  EXPECT_EQ(orders[2].second.stream, Stream::kValidation);
  EXPECT_EQ(orders[1].second.prompt.id, 1001);
  EXPECT_THAT(streams_.Held(), ElementsAre(Pair(40, 2), Pair(70, 1)));
  EXPECT_TRUE(streams_.Hear(40, DoneOf(orders[1].second)).ok());
  EXPECT_TRUE(streams_.Hear(40, DoneOf(orders[2].second)).ok());
  EXPECT_FALSE(streams_.Ready(Stream::kTrain));
  EXPECT_TRUE(streams_.Ready(Stream::kValidation));
  EXPECT_TRUE(streams_.Hear(70, DoneOf(orders[0].second)).ok());
  const StreamBatch batch = streams_.Take(Stream::kTrain);
  ASSERT_EQ(batch.finished.size(), 2u);
  // What only the trainers know of a row is put in.
  EXPECT_EQ(batch.finished[1].response.row, 1001);
  EXPECT_EQ(batch.finished[1].response.prompt, (std::vector<int32_t>{1}));
  EXPECT_EQ(streams_.Steps().at(Stream::kTrain), 1);
}

TEST_F(DeskStreamsTest, OneThatLeavesIsGoneFromEveryStream) {
  Join(9, 4);
  EXPECT_THAT(streams_.AssignAll(), ::testing::Not(IsEmpty()));
  streams_.Leave(9);
  streams_.Leave(9);
  EXPECT_THAT(streams_.Held(), IsEmpty());
  EXPECT_THAT(streams_.AssignAll(), IsEmpty());
  Join(12, 4);
  EXPECT_THAT(Orders(streams_.AssignAll()), ElementsAre("12 0", "12 1", "12 0"));
}

TEST_F(DeskStreamsTest, WordsOfAClosedStreamComeTooLate) {
  Join(3, 1);
  Assign last;
  for (auto& [worker, order] : streams_.AssignAll()) last = std::move(order);
  ASSERT_EQ(last.stream, Stream::kValidation);
  streams_.Close(Stream::kValidation);
  streams_.Close(Stream::kValidation);
  EXPECT_TRUE(streams_.Hear(3, DoneOf(last)).ok());
  EXPECT_TRUE(streams_.Hear(3, Back{Stream::kValidation, last.lease}).ok());
  EXPECT_TRUE(streams_.Settled(Stream::kValidation)) << "it wants no tokens any more";
  EXPECT_EQ(streams_.CountsOf(Stream::kValidation).running, 0);
  EXPECT_THAT(streams_.All(), ElementsAre(Stream::kTrain));
  // An open one believes no nonsense.
  Done nothing = DoneOf(last);
  nothing.stream = Stream::kTrain;
  nothing.response = rl::EncodeResponses({});
  EXPECT_EQ(streams_.Hear(3, nothing).code(), StatusCode::kInvalidData);
}

// Such as the score of a response that the desk has ended, which comes in the next validation.
TEST_F(DeskStreamsTest, WordsOfAnEarlierOpeningChangeNothing) {
  Join(3, 1);
  Assign before;
  for (auto& [worker, order] : streams_.AssignAll()) before = std::move(order);
  ASSERT_EQ(before.stream, Stream::kValidation);
  streams_.Close(Stream::kValidation);
  ThrowIfError(streams_.Open(Stream::kValidation, Options(1, 1), {}, 1));
  streams_.Join(Stream::kValidation, 3, 1, 1);
  const auto again = streams_.AssignAll();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_NE(again[0].second.lease, before.lease);
  EXPECT_TRUE(streams_.Hear(3, DoneOf(before)).ok());
  EXPECT_FALSE(streams_.Ready(Stream::kValidation));
  EXPECT_TRUE(streams_.Hear(3, DoneOf(again[0].second)).ok());
  EXPECT_TRUE(streams_.Ready(Stream::kValidation));
}

TEST_F(DeskStreamsTest, WhatIsTakenUpByOthersIsCountedOverClosedStreamsToo) {
  Join(1, 1);
  for (const auto& [worker, order] : streams_.AssignAll()) {
    Progress progress;
    progress.stream = order.stream;
    progress.lease = order.lease;
    progress.more = {{7}, {-1}, {{0, 1}}};
    ThrowIfError(streams_.Hear(worker, progress));
  }
  streams_.Leave(1);
  Join(2, 1);
  EXPECT_THAT(streams_.AssignAll(), ::testing::SizeIs(2));
  EXPECT_EQ(streams_.reassigned_tokens(), 2);
  streams_.Close(Stream::kValidation);
  EXPECT_EQ(streams_.reassigned_tokens(), 2);
  EXPECT_EQ(streams_.Describe()["train"]["running"], 1);
  EXPECT_FALSE(streams_.Describe().contains("validation"));
}

}  // namespace
}  // namespace keel::trainer::desk
