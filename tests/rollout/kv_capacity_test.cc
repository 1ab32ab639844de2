#include "rollout/kv_capacity.h"

#include <gtest/gtest.h>

#include "common/status.h"

namespace keel::rollout {
namespace {

// Six layers of two heads of eight fp32 values: 128 bytes a layer and token.
model::KvShape ShapeOf(std::vector<int64_t> windows) {
  return {static_cast<int64_t>(windows.size()), 2, 8, at::kFloat, at::kCPU, windows};
}

TEST(KvCapacityTest, OfBytesAsManyBlocksAsTheyHold) {
  const model::KvShape shape = ShapeOf({0, 0, 0, 0, 0, 0});
  const KvGroups groups = GroupsOf(shape, 100);
  const int64_t block = 6 * 128 * 16;
  EXPECT_EQ(CapacityOf({.bytes = 5 * block + 7}, shape, groups).blocks, 5);
  EXPECT_THROW(CapacityOf({.bytes = block - 1}, shape, groups), Error);
}

TEST(KvCapacityTest, OnAHostWhatTheTextsTake) {
  const KvBudget budget = {.max_num_seqs = 3, .max_model_len = 100, .at_once = 8};
  const model::KvShape plain = ShapeOf({0, 0, 0, 0, 0, 0});
  EXPECT_EQ(CapacityOf(budget, plain, GroupsOf(plain, 100)).blocks, 3 * 7);
  // Three groups of two layers: all tokens of the one, 20 and 8 more of the others.
  const model::KvShape mixed = ShapeOf({20, 20, 0, 20, 20, 0});
  const KvGroups groups = GroupsOf(mixed, 100);
  EXPECT_EQ(groups.page_layers, 2);
  EXPECT_EQ(CapacityOf(budget, mixed, groups).blocks, 3 * (7 + 2 * 3));
  // No text outgrows this window.
  const model::KvShape wide = ShapeOf({100, 100, 0, 100, 100, 0});
  EXPECT_EQ(GroupsOf(wide, 100).windows, std::vector<int64_t>{0});
  // Not without bounds.
  const KvBudget large = {.max_num_seqs = 1 << 20, .max_model_len = 1 << 20, .at_once = 8};
  EXPECT_EQ(CapacityOf(large, plain, GroupsOf(plain, 100)).blocks,
            (int64_t{1} << 30) / (6 * 128 * 16));
}

// Two of three layers have states: 4 heads of 8 x 8 fp32 values and 3 inputs of 96 channels, which
// are queries, keys and values.
TEST(KvCapacityTest, StatesAndBlocksShareTheMemory) {
  model::KvShape shape = ShapeOf({model::kNoKeys, model::kNoKeys, 0});
  shape.recurrent = {4, 4, 8, 8, 4};
  const int64_t states = 2 * (4 * 8 * 8 * 4 + 3 * 96 * 4);
  EXPECT_EQ(shape.bytes_per_sequence(), states);
  const KvGroups groups = GroupsOf(shape, 100);
  EXPECT_EQ(groups.windows, std::vector<int64_t>{0});
  EXPECT_EQ(groups.page_layers, 1);
  const int64_t block = 128 * 16;
  const KvCapacity few =
      CapacityOf({.bytes = 10 * states, .max_num_seqs = 100, .max_model_len = 100}, shape, groups);
  EXPECT_EQ(few.states, 5);
  EXPECT_EQ(few.blocks, 5 * states / block);
  const KvCapacity all =
      CapacityOf({.max_num_seqs = 3, .max_model_len = 100, .at_once = 8}, shape, groups);
  EXPECT_EQ(all.states, 3);
  EXPECT_EQ(all.blocks, 3 * 7);
  // Texts whose keys take less than their states: each of them has both.
  const KvCapacity small =
      CapacityOf({.max_num_seqs = 9, .max_model_len = 16, .at_once = 8}, shape, groups);
  EXPECT_EQ(small.states, 9);
  EXPECT_EQ(small.blocks, 9);
  // A text as long as may be, beside which there is little room.
  const KvCapacity one =
      CapacityOf({.bytes = 7 * block + 2 * states + 100, .max_num_seqs = 100, .max_model_len = 100},
                 shape, groups);
  EXPECT_EQ(one.states, 2);
  EXPECT_EQ(one.blocks, 7);
  EXPECT_THROW(CapacityOf({.bytes = states}, shape, groups), Error);
}

// Block 134,217,728 of 16 would be at place 2^31.
TEST(KvCapacityTest, NotMoreThanPlacesThatANumberOf32BitsCounts) {
  const model::KvShape tiny = {1, 1, 8, at::kBFloat16, at::kCPU, {0}};
  const int64_t blocks = CapacityOf({.bytes = int64_t{1} << 40}, tiny, GroupsOf(tiny, 100)).blocks;
  EXPECT_EQ(blocks, (int64_t{1} << 27) - 1);
}

TEST(KvCapacityTest, OnAGpuWhatNobodyHas) {
  // 80 in all: 30 of another process and of contexts, 20 that this one's allocator has, 8 of them
  // in use.
  parallel::CudaMemory memory;
  memory.total = 80;
  memory.free = 30;
  memory.reserved = 20;
  memory.allocated = 8;
  EXPECT_EQ(UsableBytes(memory), 42);
}

}  // namespace
}  // namespace keel::rollout
