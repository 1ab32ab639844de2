#include "common/tensors/transfer_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace keel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TensorInfo kMatrix{"m", DType::kF32, Dims{6, 8}};

ShardTable Table(const std::vector<std::pair<TensorInfo, Box>>& shards) {
  ShardTable table;
  for (const auto& [info, box] : shards) ThrowIfError(table.Add(info, box));
  return table;
}

// Random boxes that cover the tensor: it is cut in two, again and again.
std::vector<Box> RandomCover(const Dims& shape, int cuts, std::mt19937_64& random) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int i = 0; i < cuts && shape.size() > 0; ++i) {
    const size_t which = random() % boxes.size();
    const int dim = static_cast<int>(random() % static_cast<uint64_t>(shape.size()));
    Box& box = boxes[which];
    if (box.size[dim] < 2) continue;
    const auto at = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(box.size[dim] - 1));
    Box rest = box;
    rest.offset[dim] += at;
    rest.size[dim] -= at;
    box.size[dim] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

std::vector<ShardTable> Deal(const std::vector<TensorInfo>& tensors, int tables, bool replicas,
                             std::mt19937_64& random) {
  std::vector<ShardTable> dealt(static_cast<size_t>(tables));
  for (const TensorInfo& info : tensors) {
    for (const Box& box : RandomCover(info.shape, static_cast<int>(random() % 6), random)) {
      const size_t owner = random() % dealt.size();
      ThrowIfError(dealt[owner].Add(info, box));
      for (size_t t = 0; replicas && t < dealt.size(); ++t) {
        if (t != owner && random() % 3 == 0) ThrowIfError(dealt[t].Add(info, box, {}, 1));
      }
    }
  }
  return dealt;
}

// Element by element: who wrote each destination element, how often, and was it right.
void CheckByBruteForce(const TransferPlan& plan, const std::vector<ShardTable>& sources,
                       const std::vector<ShardTable>& destinations) {
  std::map<std::tuple<int, int, int64_t>, int> written;
  for (const Transfer& one : plan.transfers) {
    const Shard& from =
        sources[static_cast<size_t>(one.source)].shards()[static_cast<size_t>(one.source_shard)];
    const Shard& to = destinations[static_cast<size_t>(one.destination)]
                          .shards()[static_cast<size_t>(one.destination_shard)];
    ASSERT_EQ(sources[static_cast<size_t>(one.source)].tensor_of(from).name,
              destinations[static_cast<size_t>(one.destination)].tensor_of(to).name);
    ASSERT_TRUE(from.box.Contains(one.box));
    ASSERT_TRUE(to.box.Contains(one.box));
    Dims at = one.box.offset;
    for (;;) {
      int64_t key = 0;
      for (int d = 0; d < at.size(); ++d) key = key * 1000 + at[d];
      ++written[{one.destination, one.destination_shard, key}];
      int d = at.size() - 1;
      while (d >= 0 && ++at[d] == one.box.offset[d] + one.box.size[d]) {
        at[d] = one.box.offset[d];
        --d;
      }
      if (d < 0) break;
    }
  }
  int64_t expected = 0;
  for (const ShardTable& table : destinations) {
    for (const Shard& shard : table.shards()) expected += shard.box.elements();
  }
  EXPECT_EQ(static_cast<int64_t>(written.size()), expected);
  for (const auto& [element, times] : written) ASSERT_EQ(times, 1);
}

TEST(TransferPlan, EveryElementExactlyOnce) {
  const std::vector<TensorInfo> tensors = {kMatrix,
                                           {"v", DType::kBF16, Dims{13}},
                                           {"s", DType::kI64, Dims{}},
                                           {"c", DType::kF16, Dims{3, 4, 5}}};
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const auto sources = Deal(tensors, 1 + static_cast<int>(random() % 5), round % 2 == 0, random);
    const auto destinations =
        Deal(tensors, 1 + static_cast<int>(random() % 5), round % 3 == 0, random);
    const auto plan = PlanTransfer(sources, destinations);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    CheckByBruteForce(*plan, sources, destinations);
    int64_t from = 0, to = 0;
    for (const int64_t bytes : plan->bytes_from) from += bytes;
    for (const int64_t bytes : plan->bytes_to) to += bytes;
    EXPECT_EQ(from, to);
    ASSERT_TRUE(CheckPlan(*plan, sources, destinations, {}).ok());
  }
}

TEST(TransferPlan, SameLayoutMovesNothingBetweenRanks) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 50; ++round) {
    const auto tables = Deal({kMatrix}, 3, true, random);
    const auto plan = ValueOrThrow(PlanTransfer(tables, tables));
    for (const Transfer& one : plan.transfers) EXPECT_EQ(one.source, one.destination);
  }
}

TEST(TransferPlan, ReplicasShareTheLoad) {
  const std::vector<TensorInfo> tensors = {{"a", DType::kF32, Dims{10}},
                                           {"b", DType::kF32, Dims{10}},
                                           {"c", DType::kF32, Dims{10}},
                                           {"d", DType::kF32, Dims{10}}};
  ShardTable all;
  for (const TensorInfo& info : tensors) ThrowIfError(all.Add(info, Box::Whole(info.shape)));
  const std::vector<ShardTable> sources = {all, all};
  const auto plan = ValueOrThrow(PlanTransfer(sources, std::vector<ShardTable>{all}));
  EXPECT_EQ(plan.bytes_from[0], plan.bytes_from[1]);
}

TEST(TransferPlan, ReplicasCutInOtherPlaces) {
  const std::vector<ShardTable> sources = {
      Table({{kMatrix, Box::Whole(kMatrix.shape)}}),
      Table({{kMatrix, {Dims{0, 0}, Dims{3, 8}}}, {kMatrix, {Dims{3, 0}, Dims{3, 4}}}})};
  const std::vector<ShardTable> destination = {Table({{kMatrix, {Dims{1, 1}, Dims{5, 7}}}})};
  CheckByBruteForce(ValueOrThrow(PlanTransfer(sources, destination)), sources, destination);
}

TEST(TransferPlan, ErrorsListEverything) {
  const std::vector<ShardTable> source = {
      Table({{kMatrix, {Dims{0, 0}, Dims{3, 8}}},
             {{"shape", DType::kF32, Dims{2}}, Box::Whole(Dims{2})},
             {{"dtype", DType::kF32, Dims{2}}, Box::Whole(Dims{2})},
             {{"extra", DType::kF32, Dims{2}}, Box::Whole(Dims{2})}})};
  const std::vector<ShardTable> destination = {
      Table({{kMatrix, Box::Whole(kMatrix.shape)},
             {{"shape", DType::kF32, Dims{3}}, Box::Whole(Dims{3})},
             {{"dtype", DType::kBF16, Dims{2}}, Box::Whole(Dims{2})},
             {{"gone.1", DType::kF32, Dims{1}}, Box::Whole(Dims{1})},
             {{"gone.2", DType::kF32, Dims{1}}, Box::Whole(Dims{1})}})};
  TransferOptions options;
  options.allow_unused = false;
  const Status status = PlanTransfer(source, destination, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidData);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("gone.1, gone.2"), HasSubstr("shape (has [2], expected [3])"),
                    HasSubstr("dtype (has F32, expected BF16)"), HasSubstr("extra"),
                    HasSubstr("m (nobody has [3:6, 0:8])")));
}

TEST(TransferPlan, WhatMayBeMissing) {
  const std::vector<ShardTable> source = {Table({{kMatrix, {Dims{0, 0}, Dims{3, 8}}}})};
  const std::vector<ShardTable> destination = {
      Table({{kMatrix, Box::Whole(kMatrix.shape)},
             {{"lm_head.weight", DType::kF32, Dims{1}}, Box::Whole(Dims{1})}})};
  TransferOptions options;
  options.allow_missing = {"lm_*", "m"};
  const auto plan = PlanTransfer(source, destination, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->transfers.size(), 1u);
  EXPECT_EQ(plan->transfers[0].box, (Box{Dims{0, 0}, Dims{3, 8}}));
  // What may be missing may not come twice.
  TransferPlan twice = *plan;
  twice.transfers.push_back(twice.transfers[0]);
  EXPECT_TRUE(CheckPlan(*plan, source, destination, options).ok());
  EXPECT_THAT(CheckPlan(twice, source, destination, options).message(),
              HasSubstr("m: boxes [0:3, 0:8] and [0:3, 0:8] overlap"));
}

TEST(TransferPlan, CheckPlanSeesEveryMistake) {
  std::mt19937_64 random(9);
  const auto sources = Deal({kMatrix}, 3, false, random);
  const auto destinations = Deal({kMatrix}, 2, false, random);
  const TransferPlan good = ValueOrThrow(PlanTransfer(sources, destinations));
  ASSERT_TRUE(CheckPlan(good, sources, destinations, {}).ok());
  for (size_t i = 0; i < good.transfers.size(); ++i) {
    TransferPlan missing = good;
    missing.transfers.erase(missing.transfers.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(CheckPlan(missing, sources, destinations, {}).ok());
    TransferPlan twice = good;
    twice.transfers.push_back(twice.transfers[i]);
    EXPECT_FALSE(CheckPlan(twice, sources, destinations, {}).ok());
    TransferPlan outside = good;
    outside.transfers[i].box.size[0] += 1;
    EXPECT_FALSE(CheckPlan(outside, sources, destinations, {}).ok());
    TransferPlan nowhere = good;
    nowhere.transfers[i].source = 99;
    EXPECT_FALSE(CheckPlan(nowhere, sources, destinations, {}).ok());
  }
}

TEST(AssignWriters, EveryDistinctBoxOnceAndBalanced) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = Deal({kMatrix, {"v", DType::kBF16, Dims{13}}, {"s", DType::kI64, Dims{}}},
                            1 + static_cast<int>(random() % 5), true, random);
    const auto writers = ValueOrThrow(AssignWriters(ranks));
    ASSERT_EQ(writers.size(), ranks.size());
    int64_t written = 0;
    for (size_t r = 0; r < writers.size(); ++r) {
      written += writers[r].bytes();
      for (const Shard& shard : writers[r].shards()) {
        const std::string& name = writers[r].tensor_of(shard).name;
        EXPECT_TRUE(
            std::any_of(ranks[r].shards().begin(), ranks[r].shards().end(), [&](const Shard& own) {
              return ranks[r].tensor_of(own).name == name && own.box == shard.box;
            }));
      }
    }
    EXPECT_EQ(written, 6 * 8 * 4 + 13 * 2 + 8);
  }
  // Sixteen equal tensors on four ranks that hold all of them: four each.
  ShardTable all;
  for (int i = 0; i < 16; ++i)
    ThrowIfError(all.Add({"t" + std::to_string(i), DType::kF32, Dims{4}}, Box::Whole(Dims{4})));
  const std::vector<ShardTable> four = {all, all, all, all};
  for (const ShardTable& table : ValueOrThrow(AssignWriters(four)))
    EXPECT_EQ(table.bytes(), all.bytes() / 4);
}

TEST(AssignWriters, GapsAndOverlapsAreErrors) {
  const std::vector<ShardTable> gap = {Table({{kMatrix, {Dims{0, 0}, Dims{3, 8}}}}),
                                       Table({{kMatrix, {Dims{4, 0}, Dims{2, 8}}}})};
  EXPECT_FALSE(AssignWriters(gap).ok());
  const std::vector<ShardTable> overlap = {Table({{kMatrix, {Dims{0, 0}, Dims{4, 8}}}}),
                                           Table({{kMatrix, {Dims{3, 0}, Dims{3, 8}}}})};
  EXPECT_FALSE(AssignWriters(overlap).ok());
  const std::vector<ShardTable> differ = {
      Table({{kMatrix, Box::Whole(kMatrix.shape)}}),
      Table({{{"m", DType::kBF16, Dims{6, 8}}, Box::Whole(Dims{6, 8})}})};
  EXPECT_THAT(AssignWriters(differ).status().message(), HasSubstr("m (F32[6, 8] and BF16[6, 8])"));
}

// Four ranks hold all of three tensors, of which one is most of it, and rank 0 has more besides.
TEST(ChooseWriters, LargeBoxesAreCutWhereARankWouldHaveFarMoreThanTheMean) {
  ShardTable all;
  ThrowIfError(all.Add({"large", DType::kF32, Dims{1, 300, 10}}, Box::Whole(Dims{1, 300, 10})));
  ThrowIfError(all.Add({"small", DType::kF32, Dims{100}}, Box::Whole(Dims{100})));
  ThrowIfError(all.Add({"scalar", DType::kF32, Dims{}}, Box::Whole(Dims{})));
  const std::vector<ShardTable> copies(4, all);
  std::vector<ShardTable> own(4);
  ThrowIfError(own[0].Add({"own", DType::kF32, Dims{500}}, Box::Whole(Dims{500})));
  const std::vector<WriterScope> scopes = {{"copies", copies}, {"own", own}};
  const auto bytes_of = [&](const Writers& writers) {
    std::vector<int64_t> bytes(4, 0);
    for (size_t s = 0; s < scopes.size(); ++s) {
      for (size_t r = 0; r < 4; ++r) {
        const ShardTable& table = scopes[s].ranks[r];
        for (const ShardPart& part : writers[s][r])
          bytes[r] += 4 * BoxOf(table.shards()[static_cast<size_t>(part.shard)], part).elements();
      }
    }
    return bytes;
  };
  const int64_t total = 4 * (3000 + 100 + 1 + 500);
  const Writers cut = ValueOrThrow(ChooseWriters(scopes, 100));
  const std::vector<int64_t> even = bytes_of(cut);
  EXPECT_EQ(std::accumulate(even.begin(), even.end(), int64_t{0}), total);
  EXPECT_LE(*std::max_element(even.begin(), even.end()), total / 4 * 11 / 10);
  // Every element of the large one once, and no rank writes two parts of it.
  std::vector<Box> parts;
  for (size_t r = 0; r < 4; ++r) {
    int of_rank = 0;
    for (const ShardPart& part : cut[0][r]) {
      if (part.shard != 0) continue;
      parts.push_back(BoxOf(copies[r].shards()[0], part));
      EXPECT_EQ(++of_rank, 1);
    }
  }
  EXPECT_EQ(parts.size(), 4u);
  EXPECT_TRUE(CheckExactCover(Box::Whole(Dims{1, 300, 10}), parts, "large").ok());
  // Parts of no less than that: then it stays whole.
  const std::vector<int64_t> whole = bytes_of(ValueOrThrow(ChooseWriters(scopes, kNeverCut)));
  EXPECT_EQ(*std::max_element(whole.begin(), whole.end()), 4 * 3000);
}

// Equal boxes for all: files of whole tensors are the better ones.
TEST(ChooseWriters, NothingIsCutThatIsEvenByItself) {
  ShardTable all;
  for (int i = 0; i < 16; ++i)
    ThrowIfError(all.Add({"t" + std::to_string(i), DType::kF32, Dims{64}}, Box::Whole(Dims{64})));
  const std::vector<ShardTable> copies(4, all);
  const WriterScope scope{"", copies};
  const Writers writers = ValueOrThrow(ChooseWriters(std::span(&scope, 1), 4));
  for (const auto& rank : writers[0]) {
    for (const ShardPart& part : rank) EXPECT_EQ(part.rows, 0);
  }
}

}  // namespace
}  // namespace keel
