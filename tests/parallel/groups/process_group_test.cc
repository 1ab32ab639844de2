// Collectives among threads against local sums; lost peers and deadlines.

#include "parallel/groups/process_group.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "parallel/tensor/regions.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

at::Tensor Values(int rank, int64_t n, at::ScalarType dtype) {
  return at::arange(n, at::kFloat).mul(0.25).add(rank + 1).to(dtype);
}

TEST(ProcessGroupTest, CollectivesEqualLocalSums) {
  for (const int world : {2, 3, 4}) {
    std::mutex mutex;
    keel::testing::RunRanks(world, 1, 1, [&](ParallelContext& context) {
      ProcessGroup& group = context.tp();
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        const int64_t n = 17;
        at::Tensor reduced = Values(group.rank(), n, dtype);
        group.AllReduce(reduced);
        at::Tensor gathered = at::empty({world * n}, dtype);
        group.AllGather(gathered, Values(group.rank(), n, dtype));
        at::Tensor part = at::empty({n}, dtype);
        group.ReduceScatter(part, Values(group.rank(), world * n, dtype));
        at::Tensor root = Values(group.rank(), n, dtype);
        group.Broadcast(root, world - 1);
        const std::lock_guard lock(mutex);
        at::Tensor sum = at::zeros({n}, at::kDouble), wide = at::zeros({world * n}, at::kDouble);
        for (int r = 0; r < world; ++r) {
          sum.add_(Values(r, n, dtype).to(at::kDouble));
          wide.add_(Values(r, world * n, dtype).to(at::kDouble));
          EXPECT_TRUE(gathered.narrow(0, r * n, n).equal(Values(r, n, dtype)));
        }
        const double tolerance = dtype == at::kBFloat16 ? 0.02 : 0;
        EXPECT_TRUE(at::allclose(reduced.to(at::kDouble), sum, tolerance)) << dtype;
        EXPECT_TRUE(
            at::allclose(part.to(at::kDouble), wide.narrow(0, group.rank() * n, n), tolerance))
            << dtype;
        EXPECT_TRUE(root.equal(Values(world - 1, n, dtype)));
      }
    });
  }
}

TEST(ProcessGroupTest, CrossingSendsDoNotDeadlock) {
  keel::testing::RunRanks(1, 1, 2, [&](ParallelContext& context) {
    const int peer = 1 - context.pp_rank();
    const int64_t n = 1 << 20;  // more than a socket holds
    at::Tensor mine = at::full({n}, static_cast<float>(context.pp_rank() + 1)),
               theirs = at::empty({n});
    auto receive = context.pp_forward().RecvAsync(theirs, peer, 0);
    auto send = context.pp_forward().SendAsync(mine, peer, 0);
    receive->Wait();
    send->Wait();
    EXPECT_EQ(theirs[n - 1].item<float>(), static_cast<float>(peer + 1));
  });
}

// Each region's backward is the transpose of its forward: <f(x), y> = <x, f^T(y)>, summed over
// ranks.
TEST(RegionsTest, BackwardsAreTransposes) {
  using Region = at::Tensor (*)(const at::Tensor&, ProcessGroup&);
  const Region scatter = [](const at::Tensor& x, ProcessGroup& group) {
    return ReduceScatterToSequenceParallel(x, group);
  };
  const Region reduce = [](const at::Tensor& x, ProcessGroup& group) {
    return ReduceFromTensorParallel(x, group);
  };
  struct Case {
    Region region;
    bool replicated_input, replicated_output;  // counted once in the inner products
  };
  for (const Case& c : {Case{GatherFromSequenceParallel, false, false}, Case{scatter, false, false},
                        Case{GatherFromTensorParallel, false, true},
                        Case{CopyToTensorParallel, true, false}, Case{reduce, false, true}}) {
    keel::testing::RunRanks(2, 1, 1, [&](ParallelContext& context) {
      ProcessGroup& group = context.tp();
      const int rank = group.rank();
      const at::Tensor ramp = at::arange(24, at::kFloat).view({4, 6});
      at::Tensor x = (ramp + (c.replicated_input ? 0 : 5 * rank)).clone().requires_grad_(true);
      const at::Tensor out = c.region(x, group);
      const at::Tensor y = at::arange(out.numel(), at::kFloat)
                               .view(out.sizes())
                               .mul(0.5)
                               .add(c.replicated_output ? 1 : rank);
      const at::Tensor dx = torch::autograd::grad({out}, {x}, {y})[0];
      at::Tensor products = at::stack({(out.detach() * y).sum() / (c.replicated_output ? 2.0 : 1.0),
                                       (x.detach() * dx).sum() / (c.replicated_input ? 2.0 : 1.0)});
      group.AllReduce(products);
      EXPECT_NEAR(products[0].item<float>(), products[1].item<float>(),
                  1e-3 * std::abs(products[0].item<float>()));
    });
  }
}

TEST(ProcessGroupTest, ALatePeerIsNamed) {
  const Store store = Store::InProcess();
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  std::vector<std::thread> threads;
  std::string message;
  std::atomic<bool> done{false};
  std::atomic<int64_t> step{12};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options;
      options.name = "slow";
      options.ranks = {0, 1};
      options.deadline = std::chrono::milliseconds(4000);
      options.step = &step;
      const auto group = MakeProcessGroup(store, rank, options);
      if (rank == 1) {
        while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      at::Tensor tensor = at::ones({4});
      try {
        group->AllReduce(tensor);
      } catch (const Error& error) {
        message = error.what();
      }
      done = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const char* part : {"deadline exceeded", "all-reduce", "group slow", "rank 0", "step 12"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace keel::parallel
