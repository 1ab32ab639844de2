#include "serve/request_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace keel::serve {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kNow{0};
constexpr std::chrono::minutes kLong{5};

Work WorkOf(size_t prompts, int n) {
  Work work;
  work.prompts.assign(prompts, {1, 2});
  work.n = n;
  return work;
}

TEST(RequestQueueTest, WhatIsSubmittedIsTakenOnceInOrder) {
  RequestQueue queue(10);
  const auto first = queue.Submit(WorkOf(1, 1)), second = queue.Submit(WorkOf(2, 2));
  const auto news = queue.Take(kNow);
  EXPECT_EQ(news.submitted, (std::vector{*first, *second}));
  EXPECT_TRUE(queue.Take(kNow).submitted.empty());
  EXPECT_EQ(queue.open_samples(), 5);
}

TEST(RequestQueueTest, TheBoundIsOfSamplesThatAreOpen) {
  RequestQueue queue(4);
  EXPECT_EQ(queue.Submit(WorkOf(1, 5)).status().code(), StatusCode::kInvalidData);
  ASSERT_TRUE(queue.Submit(WorkOf(3, 1)).ok());
  EXPECT_EQ(queue.Submit(WorkOf(1, 2)).status().code(), StatusCode::kBusy);
  ASSERT_TRUE(queue.Submit(WorkOf(1, 1)).ok());
  queue.Take(kNow);
  queue.Ended(2);
  EXPECT_TRUE(queue.Submit(WorkOf(1, 2)).ok());
}

TEST(RequestQueueTest, ACancelledAnswerThatNobodyTookIsForgotten) {
  RequestQueue queue(4);
  const auto answer = *queue.Submit(WorkOf(1, 3));
  queue.Cancel(answer);
  const auto news = queue.Take(kNow);
  EXPECT_TRUE(news.submitted.empty() && news.cancelled.empty());
  EXPECT_EQ(queue.open_samples(), 0);
}

TEST(RequestQueueTest, ACancelledAnswerThatRunsIsReported) {
  RequestQueue queue(4);
  const auto answer = *queue.Submit(WorkOf(1, 3));
  queue.Take(kNow);
  queue.Cancel(answer);
  EXPECT_EQ(queue.Take(kNow).cancelled, std::vector{answer});
  EXPECT_EQ(queue.open_samples(), 3);
}

TEST(RequestQueueTest, NothingIsTakenOnceClosed) {
  RequestQueue queue(4);
  queue.Close();
  EXPECT_EQ(queue.Submit(WorkOf(1, 1)).status().code(), StatusCode::kUnavailable);
}

TEST(RequestQueueTest, PiecesReachTheThreadThatWaits) {
  RequestQueue queue(4);
  const auto answer = *queue.Submit(WorkOf(1, 1));
  EXPECT_TRUE(answer->Wait(kNow).empty());
  std::thread engine([&] {
    const auto news = queue.Take(kLong);
    news.submitted.at(0)->Put({.text = "a"});
    news.submitted.at(0)->Put({.text = "b", .finish = "stop"});
  });
  std::string text;
  for (bool last = false; !last;) {
    for (const Piece& piece : answer->Wait(kLong)) {
      text += piece.text;
      last = piece.last();
    }
  }
  engine.join();
  EXPECT_EQ(text, "ab");
}

}  // namespace
}  // namespace keel::serve
