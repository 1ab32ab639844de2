#include "parallel/groups/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/groups/process_group.h"
#include "tests/support/slow_copies.h"

namespace keel::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceOffer Gpu(const char* uuid) { return {0, uuid, "NVIDIA H100", ""}; }
DeviceOffer None(const char* why) { return {-1, "", "", why}; }

// A node with some GPUs, as one process sees it.
class Node final : public testing::SlowCopies {
 public:
  explicit Node(Result<int> count) : count_(std::move(count)) {}
  Result<int> DeviceCount() const override { return count_; }
  Result<GpuFacts> Describe(int index) const override {
    GpuFacts facts;
    facts.name = "NVIDIA H100";
    facts.uuid = "GPU-" + std::to_string(index);
    return facts;
  }

 private:
  Result<int> count_;
};

TEST(DeviceChoiceTest, ARankOffersTheGpuOfItsNumberOrTheOnlyOne) {
  EXPECT_EQ(OfferOf(Node(8), 3).gpu, "GPU-3");
  EXPECT_EQ(OfferOf(Node(1), 3).index, 0) << "a batch system shows each task its own";
  EXPECT_EQ(OfferOf(Node(8), 0, 5).index, 5);
  const DeviceOffer none = OfferOf(Node(2), 3);
  EXPECT_EQ(none.index, -1);
  EXPECT_EQ(none.lack, "local rank 3 of 2 usable GPUs");
  EXPECT_EQ(OfferOf(Node(2), 0, 7).lack, "GPU 7 of 2 usable ones");
  const DeviceOffer broken = OfferOf(Node(Status(StatusCode::kUnavailable, "old driver")), 0);
  EXPECT_EQ(broken.lack, "old driver");
}

TEST(DeviceChoiceTest, AllComputeOnGpusOrNone) {
  const auto both = ChooseDevice({Gpu("a"), Gpu("b")}, false);
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE(both->cuda);
  EXPECT_EQ(both->said, "2 GPUs, NVIDIA H100 on rank 0");
  EXPECT_EQ(ChooseDevice({Gpu("a")}, true)->said, "GPU 0, NVIDIA H100");

  const auto mixed = ChooseDevice({Gpu("a"), None("local rank 1 of 1 usable GPUs")}, false);
  ASSERT_TRUE(mixed.ok());
  EXPECT_FALSE(mixed->cuda) << "rank 0 would wait over NCCL for rank 1, which waits over gloo";
  EXPECT_EQ(mixed->said,
            "the CPU, although 1 of 2 ranks have a GPU: rank 1 has no GPU: local rank 1 of 1 "
            "usable GPUs");
  const auto demanded = ChooseDevice({Gpu("a"), None("old driver")}, true);
  EXPECT_EQ(demanded.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(demanded.status().message(),
              AllOf(HasSubstr("rank 1 has no GPU: old driver"), HasSubstr("trainer.device")));
  EXPECT_EQ(ChooseDevice({None("no driver"), None("no driver")}, false)->said, "the CPU");
}

TEST(DeviceChoiceTest, OneGpuIsNotForTwo) {
  const auto shared = ChooseDevice({Gpu("a"), Gpu("b"), Gpu("a")}, false);
  ASSERT_TRUE(shared.ok());
  EXPECT_FALSE(shared->cuda);
  EXPECT_THAT(shared->said, HasSubstr("ranks 0 and 2 have one GPU between them, NVIDIA H100 (a)"));
  EXPECT_FALSE(ChooseDevice({Gpu("a"), Gpu("a")}, true).ok());
}

TEST(DeviceChoiceTest, RanksThatMayShareTakeTurns) {
  EXPECT_EQ(OfferOf(Node(2), 3, std::nullopt, true).index, 1);
  EXPECT_EQ(OfferOf(Node(2), 0, 7, true).index, -1) << "one that is named is that one";
  const auto shared = ChooseDevice({Gpu("a"), Gpu("b"), Gpu("a")}, true, true);
  ASSERT_TRUE(shared.ok());
  EXPECT_TRUE(shared->cuda);
  EXPECT_EQ(shared->said,
            "2 GPUs, NVIDIA H100 on rank 0, for 3 ranks, whose messages go by way of their hosts");
  EXPECT_FALSE(ChooseDevice({Gpu("a"), None("old driver")}, true, true).ok());
}

TEST(DeviceChoiceTest, AnOfferIsReadAsItWasWritten) {
  const DeviceOffer offer{3, "GPU-1", "a \"name\"", "why\nnot"};
  const auto read = DeviceOffer::FromText(offer.ToText());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->index, 3);
  EXPECT_EQ(read->gpu, offer.gpu);
  EXPECT_EQ(read->name, offer.name);
  EXPECT_EQ(read->lack, offer.lack);
  EXPECT_FALSE(DeviceOffer::FromText("{}").ok());
}

}  // namespace
}  // namespace keel::parallel
