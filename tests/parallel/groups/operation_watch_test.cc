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
  // The same without what stands for its tensors.
  c10::intrusive_ptr<FakeWork> State() const {
    return c10::make_intrusive<FakeWork>(stream_, failure_);
  }
  void Hold(std::shared_ptr<int> tensors) { tensors_ = std::move(tensors); }

 private:
  Stream& stream_;
  const std::string failure_;
  std::shared_ptr<int> tensors_;
};

class FakeBackend final : public c10d::Backend {
 public:
  explicit FakeBackend(Stream& stream) : c10d::Backend(0, 2), stream_(stream) {}
  std::string failure;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    auto work = c10::make_intrusive<FakeWork>(stream_, failure);
    work->Hold(tensors_);
    return work;
  }
  // Operations whose tensors are there.
  int64_t alive() const { return tensors_.use_count() - 1; }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return c10::make_intrusive<FakeWork>(stream_, failure);
  }

 private:
  Stream& stream_;
  const std::shared_ptr<int> tensors_ = std::make_shared<int>();
};

class FakeGroup final : public StreamGroup {
 public:
  using StreamGroup::StreamGroup;
  void Shutdown() override { StopWatching(); }
  void Leave() { Drain(); }

 private:
  c10::intrusive_ptr<c10d::Work> StateOf(
      const c10::intrusive_ptr<c10d::Work>& work) const override {
    return static_cast<const FakeWork&>(*work).State();
  }
};

// The one rank of a group whose peer never comes.
struct Rank {
  explicit Rank(OperationWatch& watch, const char* name,
                milliseconds deadline = milliseconds(1'500),
                const std::atomic<bool>* given_up = nullptr)
      : backend(c10::make_intrusive<FakeBackend>(stream)) {
    GroupOptions options;
    options.name = name;
    options.deadline = deadline;
    options.step = &step;
    WhereInGroup where(options, 5);
    where.given_up = given_up;
    group = std::make_unique<FakeGroup>(*backend, std::move(where), watch, [this] {
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

// As a communicator's end waits for a device that is busy with an operation of another one: none of
// two ends before both were told.
TEST(OperationWatchTest, GroupsAreAbortedTogether) {
  OperationWatch watch(milliseconds(10));
  std::mutex mutex;
  std::condition_variable both;
  int told = 0;
  std::atomic<int> ended{0};
  const auto abort = [&] {
    std::unique_lock lock(mutex);
    ++told;
    both.notify_all();
    ended += both.wait_for(lock, milliseconds(20'000), [&] { return told == 2; });
  };
  const OperationWatch::Id idle = watch.AddGroup(abort);
  const OperationWatch::Id busy = watch.AddGroup(abort);
  watch.Add(busy, {.deadline = milliseconds(50),
                   .done = []() -> Result<bool> { return false; },
                   .late = [] { return Status(StatusCode::kDeadlineExceeded, "late"); }});
  EXPECT_EQ(watch.Drain(busy).message(), "late");
  watch.RemoveGroup(idle);  // waits for the aborts
  watch.RemoveGroup(busy);
  EXPECT_EQ(ended, 2);
}

// Whoever knows better than a thread for each says how.
TEST(OperationWatchTest, AWayToAbortTogetherIsTakenAndTheThreadBeginsWhereItIsTold) {
  std::atomic<int> groups{0};
  std::atomic<bool> began{false};
  OperationWatch watch(milliseconds(10));
  watch.set_at_start([&] { began = true; });
  watch.set_abort_together([&](const OperationWatch::Aborts& aborts) {
    EXPECT_TRUE(began);
    groups = static_cast<int>(aborts.size());
    for (const auto& one : aborts) one();
  });
  Rank tp(watch, "tp", milliseconds(50)), dp(watch, "dp", milliseconds(60'000));
  at::Tensor x = at::zeros({2});
  auto work = tp.group->AllReduceAsync(x, ReduceOp::kSum);
  ASSERT_TRUE(dp.stream.WaitFor(milliseconds(5'000)));
  ASSERT_TRUE(tp.stream.WaitFor(milliseconds(5'000)));
  EXPECT_EQ(groups, 2);
}

TEST(OperationWatchTest, WhoLeavesWithOperationsUnderWayEndsThemAll) {
  OperationWatch watch(milliseconds(10));
  Rank tp(watch, "tp", milliseconds(60'000)), dp(watch, "dp", milliseconds(60'000));
  watch.AbortIfBusy();
  EXPECT_TRUE(watch.failure().ok()) << "nothing was under way";
  at::Tensor x = at::zeros({2});
  auto work = dp.group->AllReduceAsync(x, ReduceOp::kSum);
  watch.AbortIfBusy();
  EXPECT_EQ(tp.aborted + dp.aborted, 2);
  EXPECT_THAT(watch.failure().message(), HasSubstr("left because of an error"));
  watch.AbortIfBusy();
  EXPECT_EQ(tp.aborted + dp.aborted, 2) << "once";
}

TEST(OperationWatchTest, WhatIsDoneAndNotLookedAtYetIsNotUnderWay) {
  OperationWatch watch(milliseconds(60'000));  // which does not look by itself
  Rank rank(watch, "tp", milliseconds(60'000));
  at::Tensor x = at::zeros({2});
  auto work = rank.group->AllReduceAsync(x, ReduceOp::kSum);
  rank.stream.End();
  watch.AbortIfBusy();
  EXPECT_EQ(rank.aborted, 0);
  EXPECT_TRUE(watch.failure().ok());
}

TEST(OperationWatchTest, AHookThatThrowsHidesNoFailure) {
  OperationWatch watch(milliseconds(10));
  watch.set_at_start([] { throw std::runtime_error("no device"); });
  watch.set_before_abort([] { throw std::runtime_error("no device"); });
  Rank rank(watch, "tp", milliseconds(50));
  at::Tensor x = at::zeros({2});
  auto work = rank.group->AllReduceAsync(x, ReduceOp::kSum);
  ASSERT_TRUE(rank.stream.WaitFor(milliseconds(5'000)));
  EXPECT_THAT(watch.failure().message(), HasSubstr("all-reduce in group tp"));
}

TEST(OperationWatchTest, AnOrderlyEndWaitsUnderTheWatch) {
  OperationWatch watch(milliseconds(10));
  Rank good(watch, "good", milliseconds(60'000));
  at::Tensor x = at::zeros({2});
  auto work = good.group->AllReduceAsync(x, ReduceOp::kSum);
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(100));
    good.stream.End();
  });
  good.group->Leave();
  EXPECT_TRUE(good.stream.ended());
  ends.join();
  Rank hung(watch, "hung", milliseconds(100));
  auto never = hung.group->AllReduceAsync(x, ReduceOp::kSum);
  EXPECT_THROW(hung.group->Leave(), Error);
}

// A link's peer may be given up by somebody else, long before a deadline.
TEST(OperationWatchTest, OperationsWithAPeerThatWasGivenUpEnd) {
  OperationWatch watch(milliseconds(10));
  std::atomic<bool> given_up{false};
  Rank link(watch, "link_3", milliseconds(60'000), &given_up);
  at::Tensor x = at::zeros({2});
  auto work = link.group->AllReduceAsync(x, ReduceOp::kSum);
  EXPECT_FALSE(link.stream.WaitFor(milliseconds(100)));
  given_up = true;
  ASSERT_TRUE(link.stream.WaitFor(milliseconds(5'000)));
  EXPECT_THAT(watch.failure().message(), HasSubstr("the peer was given up"));
  EXPECT_THROW(link.group->CheckAlive(), Error);
}

// What is looked at is the state alone: an operation's tensors go when the host lets go of it.
TEST(OperationWatchTest, TheWatchDoesNotKeepAnOperationsTensors) {
  OperationWatch watch(milliseconds(60'000));
  Rank rank(watch, "tp");
  at::Tensor x = at::zeros({2});
  auto work = rank.group->AllReduceAsync(x, ReduceOp::kSum);
  EXPECT_EQ(rank.backend->alive(), 1);
  work.reset();
  EXPECT_EQ(rank.backend->alive(), 0);
}

}  // namespace
}  // namespace keel::parallel
