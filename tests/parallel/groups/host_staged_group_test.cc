// Messages by way of the hosts are those of gloo: of tensors of the host, and, under
// KEEL_CUDA_MODULE, of a device.

#include "parallel/groups/host_staged_group.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int kWorld = 3;

// Calls body with a staged group, and what stands where its tensors are to be.
void OnEachRank(const std::function<void(ProcessGroup&, at::Device)>& body) {
  keel::testing::RunRanks(kWorld, 1, 1, [&](ParallelContext& context) {
    GroupOptions options;
    options.name = "staged";
    options.ranks = {0, 1, 2};
    const auto group = ByWayOfHosts(MakeProcessGroup(context.store(), context.rank(), options));
    EXPECT_EQ(group->size(), kWorld);
    EXPECT_EQ(group->rank(), context.rank());
    EXPECT_EQ(group->name(), "staged");
    body(*group, keel::testing::DeviceOf(context));
    group->Shutdown();
  });
}

at::Tensor Filled(int64_t n, double value, at::Device device) {
  return at::full({n}, value, at::TensorOptions(device).dtype(at::kFloat));
}
void ExpectValues(const at::Tensor& found, const std::vector<double>& values) {
  EXPECT_TRUE(at::equal(found.cpu().to(at::kDouble), at::tensor(values, at::kDouble)))
      << found.cpu();
}

TEST(HostStagedGroup, CollectivesAreThoseOfTheHosts) {
  OnEachRank([](ProcessGroup& group, at::Device device) {
    const double mine = group.rank() + 1;
    at::Tensor sum = Filled(2, mine, device);
    group.AllReduce(sum);
    ExpectValues(sum, {6, 6});
    at::Tensor most = Filled(1, mine, device);
    group.AllReduce(most, ReduceOp::kMax);
    ExpectValues(most, {3});
    at::Tensor all = Filled(3, 0, device);
    group.AllGather(all, Filled(1, mine, device));
    ExpectValues(all, {1, 2, 3});
    at::Tensor part = Filled(1, 0, device);
    group.ReduceScatter(part, at::arange(3, at::TensorOptions(device).dtype(at::kFloat)) * mine);
    ExpectValues(part, {6.0 * group.rank()});
    at::Tensor of_root = Filled(2, mine, device);
    group.Broadcast(of_root, 2);
    ExpectValues(of_root, {3, 3});
    group.Barrier();
  });
}

// Rank r has r elements for every peer.
TEST(HostStagedGroup, UnevenPartsReachTheirPeers) {
  OnEachRank([](ProcessGroup& group, at::Device device) {
    const int64_t mine = group.rank();
    at::Tensor out = Filled(0 + 1 + 2, -1, device);
    group
        .AllToAllAsync(out, Filled(kWorld * mine, static_cast<double>(mine), device), {0, 1, 2},
                       std::vector<int64_t>(kWorld, mine))
        ->Wait();
    ExpectValues(out, {1, 2, 2});
  });
}

TEST(HostStagedGroup, MessagesGoRound) {
  OnEachRank([](ProcessGroup& group, at::Device device) {
    const int next = (group.rank() + 1) % kWorld, last = (group.rank() + 2) % kWorld;
    at::Tensor received = Filled(4, -1, device);
    const auto receive = group.RecvAsync(received, last, 0);
    const auto send = group.SendAsync(Filled(4, group.rank(), device), next, 0);
    receive->Wait();
    send->Wait();
    ExpectValues(received, std::vector<double>(4, last));
  });
}

}  // namespace
}  // namespace keel::parallel
