// Texts of all lengths, none among them, between ranks as threads.

#include "trainer/sync/group_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace keel::trainer {
namespace {

std::string TextOfRank(int rank) {
  return rank == 1 ? "" : std::string(static_cast<size_t>(1 + 70'000 * rank), char('a' + rank));
}

TEST(GroupBytesTest, EveryTextGetsWhereItIsWanted) {
  testing::RunRanks(1, 3, 1, [](parallel::ParallelContext& context) {
    parallel::ProcessGroup& world = context.world();
    const std::string mine = TextOfRank(world.rank());
    const std::vector<std::string> all = {TextOfRank(0), TextOfRank(1), TextOfRank(2)};
    EXPECT_EQ(AllGatherBytes(world, mine, at::kCPU), all);
    EXPECT_EQ(ShareBytes(world, mine, at::kCPU), all);
    for (const int root : {0, 2}) {
      EXPECT_EQ(CollectBytes(world, root, mine, at::kCPU),
                world.rank() == root ? all : std::vector<std::string>(3));
    }
    EXPECT_EQ(ShareBytes(world, "", at::kCPU), std::vector<std::string>(3));
    EXPECT_EQ(CollectBytes(world, 1, "", at::kCPU), std::vector<std::string>(3));
  });
}

TEST(GroupBytesTest, APartToEachRankOrOneTextFromRankToRank) {
  testing::RunRanks(1, 1, 3, [](parallel::ParallelContext& context) {
    parallel::ProcessGroup& world = context.world();
    const int rank = world.rank();
    for (const int root : {0, 2}) {
      std::vector<std::string> parts;
      if (rank == root) parts = {TextOfRank(0), TextOfRank(1), TextOfRank(2)};
      EXPECT_EQ(ScatterBytes(world, root, parts, at::kCPU), TextOfRank(rank));
    }
    parallel::ProcessGroup& stages = context.pp_forward();
    EXPECT_EQ(RelayBytes(stages, TextOfRank(2 - rank), at::kCPU), TextOfRank(2));
    EXPECT_EQ(RelayBytes(stages, rank == 0 ? "" : "other", at::kCPU), "");
    struct Pair {
      bool flag;
      double value;
    };
    const Pair shared = ShareValue(world, Pair{rank == 0, 0.5 + rank}, at::kCPU);
    EXPECT_TRUE(shared.flag);
    EXPECT_EQ(shared.value, 0.5);
  });
}

TEST(GroupBytesTest, RankZerosStatusIsEveryRanks) {
  testing::RunRanks(1, 2, 1, [](parallel::ParallelContext& context) {
    parallel::ProcessGroup& world = context.world();
    const Status full(StatusCode::kExhausted, StatusCause::kMemory, "out of 3 GB");
    const Status heard = ShareStatus(world, world.rank() == 0 ? full : Status::Ok(), at::kCPU);
    EXPECT_EQ(heard.ToString(), full.ToString());
    EXPECT_EQ(heard.cause(), StatusCause::kMemory);
    EXPECT_TRUE(ShareStatus(world, world.rank() == 0 ? Status::Ok() : full, at::kCPU).ok());
  });
}

}  // namespace
}  // namespace keel::trainer
