// Operations that the host does not wait for: with a backend whose operations end when they are
// told to, or never.

#include "parallel/groups/operation_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "parallel/groups/stream_group.h"

namespace keel::parallel {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A device's stream: what a host waits for returns when it is drained, or aborted.
class Stream {
 public:
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool WaitFor(milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return ended_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

class FakeWork final : public c10d::Work {
 public:
  FakeWork(Stream& stream, std::string failure) : stream_(stream), failure_(std::move(failure)) {}
  bool isCompleted() override { return stream_.ended() || !failure_.empty(); }
  std::exception_ptr exception() const override {
    return failure_.empty() ? nullptr : std::make_exception_ptr(std::runtime_error(failure_));
  }
  bool wait(milliseconds) override { return true; }  // the stream waits, not the host

 private:
  Stream& stream_;
  const std::string failure_;
};

class FakeBackend final : public c10d::Backend {
 public:
  explicit FakeBackend(Stream& stream) : c10d::Backend(0, 2), stream_(stream) {}
  std::string failure;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<FakeWork>(stream_, failure);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return c10::make_intrusive<FakeWork>(stream_, failure);
  }

 private:
  Stream& stream_;
};

class FakeGroup final : public StreamGroup {
 public:
  using StreamGroup::StreamGroup;
  void Shutdown() override { StopWatching(); }
};

// The one rank of a group whose peer never comes.
struct Rank {
  explicit Rank(OperationWatch& watch, const char* name,
                milliseconds deadline = milliseconds(1'500))
      : backend(c10::make_intrusive<FakeBackend>(stream)) {
    GroupOptions options;
    options.name = name;
    options.deadline = deadline;
    options.step = &step;
    group = std::make_unique<FakeGroup>(*backend, WhereInGroup(options, 5), watch, [this] {
      ++aborted;
      stream.End();
    });
  }
  std::atomic<int64_t> step{7};
  std::atomic<int> aborted{0};
  Stream stream;
  c10::intrusive_ptr<FakeBackend> backend;
  std::unique_ptr<FakeGroup> group;
};

Status StatusOfNext(ProcessGroup& group) {
  at::Tensor x = at::zeros({2});
  try {
    group.AllReduce(x);
  } catch (const Error& error) {
    return error.status();
  }
  return Status::Ok();
}

TEST(OperationWatchTest, AnOperationThatNeverEndsIsNamedAndEveryGroupIsAborted) {
  OperationWatch watch(milliseconds(10));
  Rank tp(watch, "tp"), dp(watch, "dp", milliseconds(60'000));
  at::Tensor x = at::zeros({2});
  std::unique_ptr<Work> forgotten = dp.group->AllReduceAsync(x, ReduceOp::kSum);
  std::unique_ptr<Work> hung = tp.group->AllReduceAsync(x, ReduceOp::kSum);
  hung->Wait();  // the host goes on
  EXPECT_TRUE(watch.failure().ok());
  // As x.item() would wait: it returns within the deadline and five seconds.
  ASSERT_TRUE(tp.stream.WaitFor(milliseconds(6'500)));
  const Status failure = watch.failure();
  EXPECT_EQ(failure.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message(), AllOf(HasSubstr("all-reduce in group tp on rank 5 step 7"),
                                       HasSubstr("took longer than 1.5 s")));
  ASSERT_TRUE(dp.stream.WaitFor(milliseconds(5'000))) << "its stream would hold up the end";
  // Whatever comes next on any group says the same.
  EXPECT_EQ(StatusOfNext(*tp.group).message(), failure.message());
  EXPECT_EQ(StatusOfNext(*dp.group).message(), failure.message());
  EXPECT_THROW(forgotten->Wait(), Error);
  EXPECT_EQ(tp.aborted, 1);
  EXPECT_EQ(dp.aborted, 1);
}

TEST(OperationWatchTest, WhatWasDoneIsToldFromWhatOnlySeemsDone) {
  OperationWatch watch(milliseconds(10));
  Rank rank(watch, "pp_forward");
  std::atomic<bool> asked{false}, ended{true};
  watch.set_before_abort([&] {
    asked = true;
    ended = rank.stream.ended();
  });
  at::Tensor x = at::zeros({2});
  auto work = rank.group->RecvAsync(x, 1, 0);
  ASSERT_TRUE(rank.stream.WaitFor(milliseconds(5'000)));
  EXPECT_TRUE(asked);
  EXPECT_FALSE(ended) << "asked after the streams were let go";
  EXPECT_THAT(watch.failure().message(), HasSubstr("receive in group pp_forward on rank 5"));
}

TEST(OperationWatchTest, ALostPeerIsNamedWithoutWaitingForTheDeadline) {
  OperationWatch watch(milliseconds(10));
  Rank rank(watch, "dp", milliseconds(60'000));
  rank.backend->failure = "NCCL error: remote process exited";
  at::Tensor x = at::zeros({2});
  auto work = rank.group->AllReduceAsync(x, ReduceOp::kSum);
  ASSERT_TRUE(rank.stream.WaitFor(milliseconds(5'000)));
  EXPECT_EQ(watch.failure().code(), StatusCode::kUnavailable);
  EXPECT_THAT(watch.failure().message(),
              AllOf(HasSubstr("all-reduce in group dp"), HasSubstr("remote process exited")));
}

TEST(OperationWatchTest, OperationsThatEndAreForgottenAndAGroupCanGo) {
  OperationWatch watch(milliseconds(5));
  {
    Rank rank(watch, "tp", milliseconds(50));
    at::Tensor x = at::zeros({2});
    rank.stream.End();  // all of them are done at once
    for (int i = 0; i < 100; ++i) rank.group->AllReduce(x);
    std::this_thread::sleep_for(milliseconds(100));  // twice the deadline
    EXPECT_TRUE(watch.failure().ok());
  }
  {
    Rank rank(watch, "gone", milliseconds(500));
    at::Tensor x = at::zeros({2});
    auto work = rank.group->AllReduceAsync(x, ReduceOp::kSum);
    rank.group.reset();  // with an operation under way: an error elsewhere ended the run
    work.reset();
    std::this_thread::sleep_for(milliseconds(700));
    EXPECT_EQ(rank.aborted, 0);
  }
  EXPECT_TRUE(watch.failure().ok());
}

}  // namespace
}  // namespace keel::parallel
