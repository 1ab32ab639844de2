#include "checkpoint/save_planner.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/checkpoint/test_support.h"
#include "tests/checkpoint/weighing_coordinator.h"

namespace keel::checkpoint {
namespace {

using testing::RunRanks;
using testing::Weighing;
using namespace std::chrono_literals;

Contents ModelAlone() {
  Contents contents;
  contents.optimizer = false;
  contents.extra = false;
  return contents;
}

// A row of a matrix on each rank.
RoleState OneRow(int rank, int world) {
  RoleState role;
  role.name = "actor";
  ThrowIfError(role.model.Add({"m", DType::kF32, Dims{world, 8}}, Box{Dims{rank, 0}, Dims{1, 8}}));
  return role;
}

// Every rank was told how much every rank writes: at 16,384 of them 2.15 GB.
TEST(SavePlanner, AShareIsAsShortForManyRanksAsForTwo) {
  for (const int world : {2, 64}) {
    RunRanks(world, [world](int rank, Coordinator& coordinator) {
      Weighing weighing(coordinator);
      SavePlanner planner(weighing);
      const RoleState role = OneRow(rank, world);
      const auto plan = ValueOrThrow(planner.Plan("p", std::span(&role, 1), ModelAlone(), 10s));
      EXPECT_EQ(plan->total_bytes, world * 32);
      EXPECT_EQ(plan->largest_rank_bytes, 32);
      EXPECT_EQ(plan->files.size(), rank == 0 ? static_cast<size_t>(world) : 1u);
      EXPECT_LE(weighing.longest(), 256u);
    });
  }
}

}  // namespace
}  // namespace keel::checkpoint
