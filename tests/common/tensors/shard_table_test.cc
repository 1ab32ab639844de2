#include "common/tensors/shard_table.h"

#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace keel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Random = std::mt19937_64;

const TensorInfo kTensor{"m", DType::kF32, Dims{6, 8}};
const TensorInfo kVector{"v", DType::kBF16, Dims{13}};
const TensorInfo kScalar{"s", DType::kI64, Dims{}};

ShardTable Example() {
  ShardTable table;
  ThrowIfError(table.Add(kTensor, {Dims{0, 0}, Dims{3, 8}}));
  ThrowIfError(table.Add(kVector, {Dims{5}, Dims{8}}, {}, 2));
  ThrowIfError(table.Add(kTensor, {Dims{3, 0}, Dims{3, 8}}));
  ThrowIfError(table.Add(kScalar, Box::Whole(Dims{})));
  return table;
}

std::string Little(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

TEST(ShardTable, AddsAndFinds) {
  const ShardTable table = Example();
  ASSERT_EQ(table.tensors().size(), 3u);
  EXPECT_EQ(table.Find("m"), 0);
  EXPECT_EQ(table.Find("v"), 1);
  EXPECT_EQ(table.Find("s"), 2);
  EXPECT_EQ(table.Find("x"), -1);
  EXPECT_EQ(table.bytes(), 6 * 8 * 4 + 8 * 2 + 8);
  EXPECT_EQ(table.shards()[1].replica, 2);
  EXPECT_EQ(table.tensor_of(table.shards()[2]), kTensor);
}

TEST(ShardTable, RefusalsLeaveTheTableAsItWas) {
  ShardTable table = Example();
  const std::string before = table.Serialize();
  const auto refused = [&](const TensorInfo& info, const Box& box, const char* why) {
    const Status status = table.Add(info, box);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_EQ(table.Serialize(), before);
  };
  refused(kTensor, {Dims{0, 0}, Dims{3, 8}}, "m: box [0:3, 0:8] is in the table already");
  refused(kTensor, {Dims{4, 0}, Dims{3, 8}}, "m: box [4:7, 0:8] lies outside shape [6, 8]");
  refused(kTensor, {Dims{4}, Dims{1}}, "lies outside");
  refused({"n", DType::kF32, Dims{2}}, {Dims{1}, Dims{2}}, "lies outside");
  refused({"m", DType::kF32, Dims{6, 9}}, {Dims{0, 0}, Dims{1, 1}},
          "m: mentioned as F32[6, 8] and as F32[6, 9]");
  refused({"m", DType::kBF16, Dims{6, 8}}, {Dims{0, 0}, Dims{1, 1}}, "and as BF16[6, 8]");
  refused({"big", DType::kF64, Dims{int64_t{1} << 60}}, {Dims{0}, Dims{int64_t{1} << 60}},
          "2^62 bytes");
  refused({"overflow", DType::kU8, Dims{int64_t{1} << 62, int64_t{1} << 62}},
          Box::Whole(Dims{int64_t{1} << 62, int64_t{1} << 62}), "2^62 bytes");
  refused({"line\nfeed", DType::kF32, Dims{2}}, {Dims{1}, Dims{2}}, "line\\x0afeed: ");
  // The last that fits: the limit is on the sum.
  ASSERT_LT(table.bytes(), 4096);
  const int64_t most = (int64_t{1} << 62) - 4096;
  EXPECT_TRUE(table.Add({"most", DType::kU8, Dims{most}}, Box::Whole(Dims{most})).ok());
  EXPECT_FALSE(table.Add({"more", DType::kU8, Dims{4096}}, Box::Whole(Dims{4096})).ok());
}

TEST(ShardTable, TheSameBoxIsFoundWhereverItStands) {
  // In a table that mixes its tensors, and at every size.
  Random random(1);
  ShardTable table;
  std::vector<std::pair<TensorInfo, Box>> added;
  for (int i = 0; i < 2000; ++i) {
    const TensorInfo info{"t" + std::to_string(random() % 5), DType::kF32, Dims{50, 50}};
    Box box = Box::Whole(info.shape);
    for (int d = 0; d < 2; ++d) {
      box.offset[d] = static_cast<int64_t>(random() % 50);
      box.size[d] = 1;
    }
    bool known = false;
    for (const auto& [other, its] : added) known = known || (other.name == info.name && its == box);
    ASSERT_EQ(table.Add(info, box).ok(), !known) << i;
    if (!known) added.emplace_back(info, box);
  }
  EXPECT_LT(added.size(), 2000u);
  EXPECT_EQ(table.shards().size(), added.size());
}

TEST(ShardTable, AMillionShards) {
  // With a look at all earlier shards for each one, this would not end before the test's limit.
  // Tensors take turns, as the files of a model's layers do.
  ShardTable table;
  std::vector<TensorInfo> infos;
  for (int t = 0; t < 10; ++t)
    infos.push_back({"layer." + std::to_string(t), DType::kBF16, Dims{100'000, 16}});
  for (int64_t row = 0; row < 100'000; ++row) {
    for (const TensorInfo& info : infos)
      ASSERT_TRUE(table.Add(info, {Dims{row, 0}, Dims{1, 16}}).ok());
  }
  EXPECT_EQ(table.shards().size(), 1'000'000u);
  EXPECT_EQ(table.bytes(), int64_t{1'000'000} * 16 * 2);
  for (int64_t row = 0; row < 100'000; row += 99) {
    for (const TensorInfo& info : infos)
      ASSERT_FALSE(table.Add(info, {Dims{row, 0}, Dims{1, 16}}).ok());
  }
  for (size_t s = 0; s < table.shards().size(); ++s) {
    const Shard& shard = table.shards()[s];
    ASSERT_EQ(table.FindShard(table.tensor_of(shard).name, shard.box), static_cast<int>(s));
  }
  EXPECT_EQ(table.FindShard(infos[0].name, {Dims{0, 0}, Dims{2, 16}}), -1);
  EXPECT_EQ(table.FindShard("layer.10", {Dims{0, 0}, Dims{1, 16}}), -1);
  EXPECT_EQ(ShardTable().FindShard(infos[0].name, {Dims{0, 0}, Dims{1, 16}}), -1);
  const ShardTable copy = ValueOrThrow(ShardTable::Deserialize(table.Serialize()));
  EXPECT_EQ(copy.Fingerprint(), table.Fingerprint());
  std::vector<Box> boxes;
  for (const Shard& shard : copy.shards()) {
    if (shard.tensor == 3) boxes.push_back(shard.box);
  }
  EXPECT_TRUE(CheckExactCover(Box::Whole(infos[3].shape), boxes, "layer.3").ok());
}

TEST(ShardTable, AppendsAndForgetsViews) {
  std::vector<float> memory(48);
  ShardTable one;
  ThrowIfError(one.Add(kTensor, Box::Whole(kTensor.shape),
                       {reinterpret_cast<std::byte*>(memory.data()), Dims{8, 1}}));
  ShardTable both = Example().WithoutViews();
  EXPECT_TRUE(both.Append(one).ok());
  EXPECT_EQ(both.bytes(), Example().bytes() + one.bytes());
  EXPECT_NE(both.shards().back().view.data, nullptr);
  EXPECT_EQ(both.WithoutViews().shards().back().view.data, nullptr);
  EXPECT_EQ(both.WithoutViews().Fingerprint(), both.Fingerprint());
  EXPECT_FALSE(both.Append(one).ok());
}

TEST(ShardTable, FingerprintSeesEverythingButViews) {
  const uint64_t base = Example().Fingerprint();
  const auto changed = [&](const TensorInfo& info, const Box& box, int replica) {
    ShardTable table;
    ThrowIfError(table.Add(info, box, {}, replica));
    return table.Fingerprint();
  };
  const Box box{Dims{0, 0}, Dims{3, 8}};
  const uint64_t one = changed(kTensor, box, 0);
  EXPECT_NE(one, base);
  EXPECT_NE(one, changed({"n", DType::kF32, Dims{6, 8}}, box, 0));
  EXPECT_NE(one, changed({"m", DType::kI32, Dims{6, 8}}, box, 0));
  EXPECT_NE(one, changed({"m", DType::kF32, Dims{7, 8}}, box, 0));
  EXPECT_NE(one, changed(kTensor, {Dims{1, 0}, Dims{3, 8}}, 0));
  EXPECT_NE(one, changed(kTensor, {Dims{0, 0}, Dims{4, 8}}, 0));
  EXPECT_NE(one, changed(kTensor, box, 1));
  EXPECT_EQ(one, changed(kTensor, box, 0));
}

TEST(ShardTable, BytesOfAnEmptyTableAndBack) {
  const std::string bytes = ShardTable().Serialize();
  EXPECT_EQ(bytes, Little(0) + Little(0));
  EXPECT_TRUE(ValueOrThrow(ShardTable::Deserialize(bytes)).shards().empty());
}

TEST(ShardTable, EveryTruncationIsMalformed) {
  const std::string whole = Example().Serialize();
  EXPECT_EQ(ValueOrThrow(ShardTable::Deserialize(whole)).Serialize(), whole);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto table = ShardTable::Deserialize(whole.substr(0, size));
    ASSERT_EQ(table.status().code(), StatusCode::kInvalidData) << size;
    EXPECT_THAT(table.status().message(), HasSubstr("malformed shard table")) << size;
  }
  EXPECT_THAT(
      ShardTable::Deserialize(whole + "x").status().message(),
      AllOf(HasSubstr("expected its end"), HasSubstr("byte " + std::to_string(whole.size()))));
}

TEST(ShardTable, DamagedBytesAreRefusedOrGiveTheSameBytesAgain) {
  const std::string whole = Example().Serialize();
  const auto check = [](const std::string& bytes) {
    const auto table = ShardTable::Deserialize(bytes);
    if (table.ok()) {
      EXPECT_EQ(table->Serialize(), bytes);
    } else {
      EXPECT_EQ(table.status().code(), StatusCode::kInvalidData);
      EXPECT_THAT(table.status().message(), HasSubstr("malformed shard table"));
    }
    return table.ok();
  };
  int refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    refused += check(bytes) ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
  // Hostile numbers in the place of each of its numbers, and two at once.
  const std::vector<uint64_t> hostile = {
      0,          1,    2, 7, 255, 1u << 31, 1ull << 32, 1ull << 61, 1ull << 62, (1ull << 63) - 1,
      1ull << 63, ~0ull};
  Random random(2);
  for (size_t at = 0; at + 8 <= whole.size(); ++at) {
    for (const uint64_t number : hostile) {
      std::string bytes = whole;
      bytes.replace(at, 8, Little(number));
      check(bytes);
      bytes.replace(random() % (whole.size() - 8), 8, Little(hostile[random() % hostile.size()]));
      check(bytes);
    }
  }
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 4 == 0 ? random() : 0);
    check(bytes);
  }
}

TEST(ShardTable, CountsThatNoBytesFollowCostNothing) {
  // A reader that trusted these counts would ask for more memory than there is.
  for (const uint64_t count : {1ull << 40, (1ull << 63) - 1, ~0ull}) {
    EXPECT_FALSE(ShardTable::Deserialize(Little(count)).ok());
    EXPECT_FALSE(ShardTable::Deserialize(Little(0) + Little(count)).ok());
    EXPECT_FALSE(ShardTable::Deserialize(Little(1) + Little(count)).ok());
  }
}

TEST(ShardTable, TensorsThatNoShardMentionsAreMalformed) {
  ShardTable one;
  ThrowIfError(one.Add(kScalar, Box::Whole(Dims{})));
  std::string bytes = one.Serialize();
  // Two tensors, the second is nowhere; both of one name.
  const std::string tensor = bytes.substr(8, 8 + 1 + 8 + 8);
  const std::string shards = bytes.substr(8 + tensor.size());
  ASSERT_EQ(ShardTable::Deserialize(Little(1) + tensor + shards)->Serialize(), bytes);
  EXPECT_THAT(ShardTable::Deserialize(Little(2) + tensor + tensor + shards).status().message(),
              HasSubstr("the tensors in the order of their first shards"));
  std::string other = tensor;
  other[8] = 'z';
  EXPECT_FALSE(ShardTable::Deserialize(Little(2) + tensor + other + shards).ok());
  EXPECT_FALSE(ShardTable::Deserialize(Little(2) + other + tensor + shards).ok());
}

// Memory of a box with gaps between rows and columns, and the place of each of its elements.
struct Strided {
  std::vector<uint32_t> memory;
  Dims strides;
  StridedView view() { return {reinterpret_cast<std::byte*>(memory.data()), strides}; }
  uint32_t& at(const Box& box, const Dims& element) {
    int64_t place = 0;
    for (int d = 0; d < box.dims(); ++d) place += (element[d] - box.offset[d]) * strides[d];
    return memory[static_cast<size_t>(place)];
  }
};

Strided Memory(Random& random, const Box& box, uint32_t fill) {
  // A random order of the dims, with or without a gap after each: rows, columns, transposes.
  std::vector<int> order(static_cast<size_t>(box.dims()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  Strided made;
  made.strides = Dims::Filled(box.dims(), 0);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (random() % 3 == 0) ++stride;
    made.strides[order[i]] = stride;
    stride *= box.size[order[i]];
  }
  made.memory.assign(static_cast<size_t>(stride + 8), fill);
  return made;
}

TEST(CopyBox, AgreesWithElementByElement) {
  Random random(3);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  for (int round = 0; round < 4000; ++round) {
    const int dims = round % 5;
    Box box, source_box, dest_box;
    box.offset = box.size = Dims::Filled(dims, 0);
    for (int d = 0; d < dims; ++d) {
      box.offset[d] = 3 + below(3);
      const int64_t most = round % 25 == 2 ? 90 : 4;  // of matrices some are larger than a tile
      box.size[d] = round % 50 == 0 ? below(3) : 1 + below(most);
    }
    source_box = dest_box = box;
    for (Box* outer : {&source_box, &dest_box}) {
      for (int d = 0; d < dims; ++d) {
        const int64_t before = below(3), after = below(3);
        outer->offset[d] -= before;
        outer->size[d] += before + after;
      }
    }
    Strided source = Memory(random, source_box, 0);
    for (uint32_t& value : source.memory) value = static_cast<uint32_t>(random()) | 1u;
    Strided dest = Memory(random, dest_box, 0);
    Strided expected = dest;
    if (!box.empty()) {
      for (Dims at = box.offset;;) {
        expected.at(dest_box, at) = source.at(source_box, at);
        int d = dims - 1;
        while (d >= 0 && ++at[d] == box.offset[d] + box.size[d]) {
          at[d] = box.offset[d];
          --d;
        }
        if (d < 0) break;
      }
    }
    CopyBox(box, source_box, source.view(), dest_box, dest.view(), 4);
    ASSERT_EQ(dest.memory, expected.memory) << box.ToString();
  }
}

}  // namespace
}  // namespace keel
