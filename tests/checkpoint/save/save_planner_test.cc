#include "checkpoint/save/save_planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/weighing_coordinator.h"

namespace keel::checkpoint {
namespace {

using testing::Cut;
using testing::LoadFrom;
using testing::MakeStateOfOneBox;
using testing::RunRanks;
using testing::SaveOn;
using testing::SimFileSystem;
using testing::SmallOptions;
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
      SavePlanner planner(weighing, 4096);
      const RoleState role = OneRow(rank, world);
      const auto plan = ValueOrThrow(planner.Plan("p", std::span(&role, 1), ModelAlone(), 10s));
      EXPECT_EQ(plan->total_bytes, world * 32);
      EXPECT_EQ(plan->largest_rank_bytes, 32);
      EXPECT_EQ(plan->files.size(), rank == 0 ? static_cast<size_t>(world) : 1u);
      EXPECT_LE(weighing.longest(), 256u);
    });
  }
}

// What rank 0 hears of a table of many like tensors is a small part of the table.
TEST(SavePlanner, TablesTravelSmall) {
  RoleState role;
  role.name = "actor";
  for (int layer = 0; layer < 100; ++layer) {
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      const TensorInfo tensor{
          fmt::format("optimizer.{}.model.layers.{}.mlp.down_proj.weight", kind, layer),
          DType::kF32, Dims{512, 1024}};
      ThrowIfError(role.model.Add(tensor, Box::Whole(tensor.shape), {}, 1));
    }
  }
  RunRanks(2, [&](int rank, Coordinator& coordinator) {
    Weighing weighing(coordinator);
    SavePlanner planner(weighing, 4096);
    const auto plan = ValueOrThrow(planner.Plan("p", std::span(&role, 1), ModelAlone(), 10s));
    EXPECT_EQ(plan->total_bytes, 300 * 512 * 1024 * 4);
    if (rank == 1) {
      EXPECT_LT(weighing.longest(), role.model.Serialize().size() / 5);
    }
  });
}

// What all hold is dealt out box by box: where one is most of the state, its rank was waited for.
TEST(SavePlanner, ABoxThatIsMostOfTheStateIsWrittenByAllWhoHoldIt) {
  auto [state, cut] = MakeStateOfOneBox();
  SimFileSystem disk;
  ASSERT_EQ(SaveOn(disk, cut, 7, SmallOptions()).ToString(), "ok");
  const StepReader reader = ValueOrThrow(StepReader::Open(disk, StepDirectory(7)));
  const Index& index = reader.index();
  const IndexTensor saved = index.tensor(index.FindTensor(index.FindScope("actor/model"), "most"));
  EXPECT_EQ(saved.box_count, 4);
  std::set<int> files;
  for (int64_t b = saved.first_box; b < saved.first_box + saved.box_count; ++b) {
    files.insert(index.box_file(b));
    EXPECT_LE(index.box(b).bytes, 64 * 256 * 4 / 2);
  }
  EXPECT_EQ(files.size(), 4u);
  cut.Clear(0x5a);
  ASSERT_TRUE(LoadFrom(disk, cut).ok());
  EXPECT_EQ(cut.FirstDifference(state), "");
}

}  // namespace
}  // namespace keel::checkpoint
