#include "parallel/groups/first_contact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "parallel/pipeline/pipeline_runner.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

using std::chrono::milliseconds;

// Who has come to which pair's first message, of all ranks of the test.
class Meetings {
 public:
  explicit Meetings(milliseconds patience) : patience_(patience) {}

  // Stands until both of the pair are here, as NCCL's connection does.
  void Meet(const std::string& pair, bool lower) {
    std::unique_lock lock(mutex_);
    come_[pair][lower ? 0 : 1] = true;
    changed_.notify_all();
    const auto both = [&] { return come_[pair][0] && come_[pair][1]; };
    if (!changed_.wait_for(lock, patience_, both))
      throw Error(StatusCode::kDeadlineExceeded, "stands in the first message of " + pair);
  }

 private:
  const milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::array<bool, 2>> come_;
};

// A group whose pairs connect with their first message.
class LazyGroup final : public ProcessGroup {
 public:
  LazyGroup(ProcessGroup& inner, Meetings& meetings) : inner_(inner), meetings_(meetings) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) override {
    return inner_.AllReduceAsync(tensor, op);
  }
  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    return inner_.AllGatherAsync(out, in);
  }
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    return inner_.ReduceScatterAsync(out, in);
  }
  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>& out_sizes,
                                      const std::vector<int64_t>& in_sizes) override {
    return inner_.AllToAllAsync(out, in, out_sizes, in_sizes);
  }
  void Broadcast(at::Tensor& tensor, int root) override { inner_.Broadcast(tensor, root); }
  std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) override {
    Meet(peer);
    return inner_.SendAsync(tensor, peer, tag);
  }
  std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) override {
    Meet(peer);
    return inner_.RecvAsync(tensor, peer, tag);
  }
  void Barrier() override { inner_.Barrier(); }
  void Shutdown() override {}

 private:
  void Meet(int peer) {
    const int lower = std::min(rank(), peer);
    meetings_.Meet(name() + " " + std::to_string(lower), rank() == lower);
  }
  ProcessGroup& inner_;
  Meetings& meetings_;
};

// A step of one micro-batch over groups that connect lazily: the error of the stages, or "".
std::string Step(bool connects) {
  Meetings meetings(connects ? milliseconds(60'000) : milliseconds(1'500));
  std::mutex mutex;
  std::string failure;
  testing::RunRanks(1, 1, 3, [&](ParallelContext& context) {
    LazyGroup forward(context.pp_forward(), meetings);
    LazyGroup backward(context.pp_backward(), meetings);
    try {
      if (connects) {
        ConnectNeighbours(forward, true, at::kCPU);
        ConnectNeighbours(backward, false, at::kCPU);
      }
      PipelineRunner runner(forward, backward, at::TensorOptions().dtype(at::kFloat));
      StageCallbacks callbacks;
      callbacks.activation_shape = [](int) { return std::vector<int64_t>{2, 3}; };
      const at::Tensor weight = at::ones({3}).requires_grad_(true);
      callbacks.forward = [&](int, const at::Tensor& input) {
        const at::Tensor x = (input.defined() ? input : at::ones({2, 3})) * weight;
        return context.pp_rank() == 2 ? x.sum() : x;
      };
      const at::Tensor loss = runner.Train(1, callbacks);
      if (context.pp_rank() == 2) {
        EXPECT_EQ(loss.item<float>(), 6.0F);
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      failure = error.status().message();
    }
  });
  return failure;
}

TEST(FirstContactTest, AStepOfOneMicroBatchHangsWhereItsPairsStillHaveToMeet) {
  EXPECT_THAT(Step(false), ::testing::HasSubstr("stands in the first message of pp_"));
}

TEST(FirstContactTest, NeighboursThatHaveMetDoNot) { EXPECT_EQ(Step(true), ""); }

TEST(FirstContactTest, WhoDoesNotComeIsNamed) {
  const Store store = Store::InProcess().WithPrefix("meet");
  Status status;
  std::thread other([&] { status = MeetInStore(store, 4, {2, 4, 9}, milliseconds(300)); });
  EXPECT_EQ(MeetInStore(store, 2, {2, 4, 9}, milliseconds(300)).code(),
            StatusCode::kDeadlineExceeded);
  other.join();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("for rank 9, which did not come"));
  // All of them.
  const Store again = Store::InProcess().WithPrefix("meet");
  std::thread peer([&] { status = MeetInStore(again, 1, {0, 1}, milliseconds(10'000)); });
  EXPECT_TRUE(MeetInStore(again, 0, {0, 1}, milliseconds(10'000)).ok());
  peer.join();
  EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace keel::parallel
