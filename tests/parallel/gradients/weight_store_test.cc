#include "parallel/gradients/weight_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/gradients/grad_buffer.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

// A stage's parameters, of several widths, each with one canonical tensor that is its own.
struct Stage {
  Stage() {
    Add("a", {7, 5});
    Add("b", {5});
    Add("c", {3, 8});
    Add("d", {1, 5});
  }
  void Add(const std::string& name, const Dims& shape) {
    parameters.push_back(std::make_unique<Parameter>());
    Parameter& p = *parameters.back();
    p.name = name;
    p.shape = shape;
    p.pieces = {{name + ".weight", shape, Box::Whole(shape)}};
    list.push_back(&p);
  }
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> list;
};

TEST(WeightStore, ParametersLieOneAfterAnotherAndNoneAsksForAGradient) {
  Stage stage;
  const WeightStore store(stage.list, {at::kBFloat16, at::kCPU});
  store.flat().copy_(at::arange(store.flat().numel()));
  int64_t at = 0;
  for (const Parameter* p : stage.list) {
    EXPECT_FALSE(p->value.requires_grad()) << p->name;
    EXPECT_EQ(p->value.scalar_type(), at::kBFloat16);
    const int64_t n = p->shape.elements();
    EXPECT_TRUE(at::equal(p->value.flatten(), at::arange(at, at + n).to(at::kBFloat16))) << p->name;
    EXPECT_EQ(p->gradient.numel(), 0);
    at += n;
  }
}

// Of a canonical matrix with a row for each input, whose columns are the parameter's rows: the
// first two, behind them the last.
TEST(WeightStore, ATableShowsATransposedMatrixAsFilesHaveIt) {
  Stage stage;
  stage.Add("t", {3, 4});
  Parameter& p = *stage.parameters.back();
  p.pieces = {{"t.weight", {6, 9}, {{1, 0}, {4, 2}}, 0, true},
              {"t.weight", {6, 9}, {{1, 8}, {4, 1}}, 2, true}};
  EXPECT_EQ(p.RowsOf(p.pieces[0]), 2);
  const WeightStore store(stage.list, {});
  p.value.copy_(at::arange(12).view({3, 4}));
  const ShardTable table = store.Table({}, false);
  std::vector<float> seen(6 * 9, -1);
  for (const Shard& shard : table.shards()) {
    if (table.tensor_of(shard).name != "t.weight") continue;
    CopyBox(shard.box, shard.box, shard.view, Box::Whole({6, 9}),
            {reinterpret_cast<std::byte*>(seen.data()), {9, 1}}, 4);
  }
  for (int64_t input = 0; input < 4; ++input) {
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t column = row < 2 ? row : 8;
      EXPECT_EQ(seen[static_cast<size_t>((1 + input) * 9 + column)],
                p.value[row][input].item<float>());
    }
  }
}

TEST(WeightStore, MemoryThatIsReleasedComesBackUnderTheSameViews) {
  Stage stage;
  WeightStore store(stage.list, {});
  const auto bytes = static_cast<size_t>(store.flat().numel()) * 4;
  store.Release();
  EXPECT_EQ(store.flat().storage().nbytes(), 0u);
  store.Allocate();
  EXPECT_EQ(store.flat().storage().nbytes(), bytes);
  store.flat().fill_(3);
  EXPECT_TRUE(at::equal(stage.list[2]->value, at::full({3, 8}, 3.0F)));
  const void* memory = store.flat().const_data_ptr();
  store.Allocate();
  EXPECT_EQ(store.flat().const_data_ptr(), memory) << "there was nothing to allocate";
}

TEST(WeightStore, WhatIsAdoptedIsSeenByEveryViewAndGoneFromWhereItCame) {
  Stage stage;
  WeightStore store(stage.list, {});
  const at::Tensor fresh = at::arange(store.flat().numel(), at::kFloat);
  const at::Tensor expected = fresh.clone();
  const void* memory = fresh.const_data_ptr();
  store.Adopt(fresh);
  EXPECT_EQ(store.flat().const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(store.flat(), expected));
  EXPECT_TRUE(at::equal(stage.list[0]->value.flatten(), expected.narrow(0, 0, 35)));
  EXPECT_EQ(fresh.storage().nbytes(), 0u);
  EXPECT_ANY_THROW(store.Adopt(at::zeros({3})));
}

TEST(WeightStore, ViewsOfAnothersMemoryAreOfTheSameParametersOnly) {
  Stage stage, twin, other;
  WeightStore store(stage.list, {});
  store.Release();  // as the weights of a trainer that are offloaded
  const WeightStore views(twin.list, store);
  store.Allocate();
  stage.list[3]->value.fill_(7);
  EXPECT_TRUE(at::equal(twin.list[3]->value, stage.list[3]->value));
  other.list[1]->shape = {6};
  EXPECT_ANY_THROW(WeightStore(other.list, store));
  other.list.pop_back();
  EXPECT_ANY_THROW(WeightStore(other.list, store));
}

TEST(WeightStore, TheTableIsOfEachPieceWhereItLies) {
  Stage stage;
  // Rows 2 and 3 of "a" hold the last rows of a tensor; the others are padding.
  stage.list[0]->pieces = {{"whole", {11, 5}, {{9, 0}, {2, 5}}, 2}};
  const WeightStore store(stage.list, {});
  store.flat().copy_(at::arange(store.flat().numel(), at::kFloat));
  const ShardTable table = store.Table({}, false);
  ASSERT_EQ(table.shards().size(), 4u);
  const Shard& shard = table.shards()[0];
  EXPECT_EQ(table.tensor_of(shard).name, "whole");
  float first = -1;
  std::memcpy(&first, shard.view.data, sizeof first);
  EXPECT_EQ(first, 10);  // of row 2
  // In other memory of the same form.
  const at::Tensor host = at::zeros_like(stage.list[0]->value);
  const ShardTable moved = store.Table({}, false, [&](const at::Tensor& tensor) {
    return tensor.is_same(stage.list[0]->value) ? host : tensor;
  });
  EXPECT_EQ(moved.shards()[0].view.data,
            static_cast<std::byte*>(host.data_ptr()) + size_t{10} * sizeof(float));
}

// The numbers of copies, in layouts with and without an axis that Keel does not have, against who
// holds the same by brute force.
TEST(WeightStore, CopiesOfTheSameValuesAreNumberedApartAndTheFirstIsZero) {
  constexpr Axis kFurther = static_cast<Axis>(3);
  const std::vector<AxisSet> rules = {kDataAxes, kDataAxes.With({Axis::kTp}),
                                      kDataAxes.With({kFurther}),
                                      kDataAxes.With({Axis::kTp, kFurther})};
  for (int place = -1; place <= 3; ++place) {
    std::vector<AxisDegree> axes = {{Axis::kTp, 2}, {Axis::kDp, 3}, {Axis::kPp, 2}};
    if (place >= 0) axes.insert(axes.begin() + place, {kFurther, 2});
    const Layout layout(axes);
    for (const bool tied : {false, true}) {
      for (const AxisSet rule : rules) {
        // By what tells the holders of one part from those of another: number, and rank.
        std::map<std::vector<int>, std::map<int, int>> parts;
        for (int rank = 0; rank < layout.world(); ++rank) {
          Stage stage;
          Parameter& p = *stage.list[0];
          p.replicated_over = rule;
          p.replica = tied && layout.CoordOf(rank, Axis::kPp) == 1;
          std::vector<int> part;
          for (const AxisDegree& one : axes) {
            const bool same = rule.has(one.axis) || (tied && one.axis == Axis::kPp);
            part.push_back(same ? -1 : layout.CoordOf(rank, one.axis));
          }
          const ShardTable table = WeightStore(stage.list, {}).Table({layout, rank}, true);
          const bool fresh = parts[part].emplace(table.shards()[0].replica, rank).second;
          EXPECT_TRUE(fresh) << "a number twice";
        }
        for (const auto& [part, copies] : parts) {
          EXPECT_EQ(static_cast<int>(copies.size()), layout.degree(rule) * (tied ? 2 : 1));
          ASSERT_TRUE(copies.contains(0));
          for (const AxisDegree& one : axes) {
            if (rule.has(one.axis) || (tied && one.axis == Axis::kPp)) {
              EXPECT_EQ(layout.CoordOf(copies.at(0), one.axis), 0);
            }
          }
        }
      }
    }
  }
}

// What adapters stand beside has a memory of its own, of odd size here, and constants behind it.
TEST(WeightStore, TheBaseLiesApart) {
  const auto stage_of = [] {
    auto stage = std::make_unique<Stage>();
    for (const size_t i : {0u, 1u, 3u}) stage->parameters[i]->frozen = true;
    stage->Add("bias", {3});
    stage->parameters.back()->constant = stage->parameters.back()->frozen = true;
    return stage;
  };
  const auto stage = stage_of();
  const auto& list = stage->list;
  WeightStore store(list, {at::kBFloat16, at::kCPU});
  EXPECT_EQ(store.parameters(), std::vector<Parameter*>{list[2]});
  EXPECT_EQ(store.frozen().size(), 4u);
  EXPECT_EQ(store.flat().numel(), store.layout().total);
  for (const size_t i : {0u, 1u, 3u, 4u})
    EXPECT_EQ(StorageOf(list[i]->value), StorageOf(store.base())) << list[i]->name;
  store.flat().fill_(1);
  for (const size_t i : {0u, 1u, 3u}) list[i]->value.fill_(static_cast<double>(i + 2));
  list[4]->value.fill_(1.0F / 3);
  EXPECT_EQ(list[4]->value.scalar_type(), at::kFloat);

  const auto names = [](const ShardTable& table) {
    std::vector<std::string> found;
    for (const TensorInfo& tensor : table.tensors()) found.push_back(tensor.name);
    return found;
  };
  using Which = WeightStore::Which;
  EXPECT_EQ(names(store.Table({}, false, {}, Which::kOwn)), std::vector<std::string>{"c.weight"});
  EXPECT_EQ(names(store.Table({}, false, {}, Which::kBase)),
            (std::vector<std::string>{"a.weight", "b.weight", "d.weight", "bias.weight"}));
  EXPECT_EQ(store.Table({}, false).tensors().size(), 5u);

  // A store of another dtype takes all over, or what is not the base's.
  const auto wide = stage_of();
  WeightStore copy(wide->list, {at::kFloat, at::kCPU});
  copy.CopyOwnFrom(store);
  EXPECT_EQ(wide->list[2]->value.min().item<float>(), 1);
  EXPECT_EQ(wide->list[0]->value.max().item<float>(), 0);
  copy.CopyFrom(store);
  for (const size_t i : {0u, 1u, 3u})
    EXPECT_EQ(wide->list[i]->value.min().item<double>(), static_cast<double>(i + 2));
  EXPECT_TRUE(at::equal(wide->list[4]->value, list[4]->value));

  // The weights' memory is exchanged without it, and both are given back.
  store.Adopt(at::full_like(store.flat(), 5));
  EXPECT_EQ(list[2]->value.max().item<float>(), 5);
  EXPECT_EQ(list[0]->value.max().item<float>(), 2);
  store.Release();
  EXPECT_EQ(store.base().storage().nbytes() + store.flat().storage().nbytes(), 0u);
  store.Allocate();
  EXPECT_GT(store.base().storage().nbytes(), 0u);
}

// A constant keeps fp32 in a store of another dtype, in every way that its values go, and training
// knows nothing of it.
TEST(WeightStore, ConstantsAreFp32AndGoWithTheOthers) {
  const auto stage_of = [] {
    auto stage = std::make_unique<Stage>();
    stage->Add("bias", {3});
    stage->parameters.back()->constant = true;
    stage->Add("e", {2, 2});
    return stage;
  };
  const auto stage = stage_of();
  const Parameter& bias = *stage->list[4];
  WeightStore store(stage->list, {at::kBFloat16, at::kCPU});
  ASSERT_EQ(bias.value.scalar_type(), at::kFloat);
  EXPECT_EQ(store.parameters().size(), 5u);
  EXPECT_EQ(store.flat().numel(), store.layout().total + 6);
  const at::Tensor values = at::tensor({1.0F / 3, 8.25F + 1.0F / 1024, -7e-12F});
  bias.value.copy_(values);
  stage->list[5]->value.fill_(2);
  EXPECT_TRUE(at::equal(bias.value, values));

  const ShardTable table = store.Table({}, false);
  const int at = table.Find("bias.weight");
  ASSERT_GE(at, 0);
  EXPECT_EQ(table.tensors()[static_cast<size_t>(at)].dtype, DType::kF32);
  EXPECT_EQ(table.tensors()[static_cast<size_t>(table.Find("a.weight"))].dtype, DType::kBF16);
  EXPECT_EQ(table.shards().back().view.data, static_cast<std::byte*>(bias.value.data_ptr()));

  // Another store of the same parameters sees it, one of another dtype takes it over.
  const auto other = stage_of();
  const WeightStore alias(other->list, store);
  EXPECT_TRUE(at::equal(other->list[4]->value, values));
  const auto wide = stage_of();
  WeightStore copy(wide->list, {at::kFloat, at::kCPU});
  copy.CopyFrom(store);
  EXPECT_TRUE(at::equal(wide->list[4]->value, values));
  EXPECT_TRUE(at::equal(wide->list[5]->value, at::full({2, 2}, 2.0F)));

  // It comes with the memory that a store adopts.
  const at::Tensor fresh = at::zeros_like(store.flat());
  fresh.copy_(store.flat());
  bias.value.zero_();
  store.Adopt(fresh);
  EXPECT_TRUE(at::equal(bias.value, values));

  keel::testing::RunRanks(1, 2, 1, [&](ParallelContext& context) {
    const auto mine = stage_of();
    WeightStore trained = GradBuffer::MakeStore(mine->list, context, {at::kBFloat16, at::kCPU}, 64);
    mine->list[4]->value.copy_(values);
    const GradBuffer buffer(trained, context);
    EXPECT_FALSE(mine->list[4]->value.requires_grad());
    EXPECT_EQ(mine->list[4]->gradient.numel(), 0);
    trained.Publish();
    EXPECT_TRUE(at::equal(mine->list[4]->value, values));
  });
}

TEST(WeightStore, EachRankPublishesItsChunksAndSaysBeforehandWhatIsOverwritten) {
  for (const int dp : {1, 2, 3}) {
    keel::testing::RunRanks(1, dp, 1, [&](ParallelContext& context) {
      Stage stage;
      WeightStore store = GradBuffer::MakeStore(stage.list, context, {}, 64);
      EXPECT_GT(store.layout().buckets.size(), 1u);
      for (const Bucket& bucket : store.layout().buckets)
        store.OwnChunk(bucket).fill_(static_cast<float>(context.rank() + 1));
      size_t announced = 0;
      store.set_before_write([&](const void* begin, size_t bytes) {
        const auto* values = static_cast<const float*>(begin);
        // What another rank owns is not there yet.
        EXPECT_EQ(values[0], context.rank() == 0 ? 1.0F : 0.0F);
        announced += bytes;
      });
      store.Publish();
      EXPECT_EQ(announced, dp == 1 ? 0 : store.flat().nbytes());
      for (const Bucket& bucket : store.layout().buckets) {
        for (int rank = 0; rank < dp; ++rank) {
          const at::Tensor chunk =
              store.flat().narrow(0, bucket.offset + rank * bucket.chunk, bucket.chunk);
          EXPECT_TRUE(at::equal(chunk, at::full_like(chunk, rank + 1))) << "dp " << dp;
        }
      }
    });
  }
}

}  // namespace
}  // namespace keel::parallel
