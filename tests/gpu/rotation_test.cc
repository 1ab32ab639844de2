// The rotation's kernel against its definition in fp64, and the cache that it fills.

#include "gpu/rotation.h"

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

struct TurnCase {
  int64_t heads, kv_heads, d, half;
  bool interleaved = false;
};

constexpr int64_t kTurnRows = 6;
constexpr int64_t kPositions = 40;

struct TurnInput {
  at::Tensor qkv, positions, cosine, sine;
};

TurnInput DrawnTurn(const TurnCase& c, at::ScalarType type) {
  const at::Tensor angles = Draw(2, {kPositions, c.half});
  return {Draw(1, {kTurnRows, (c.heads + 2 * c.kv_heads) * c.d}, type),
          at::tensor({0, 3, 39, 3, 17, 1}, at::kInt), angles.cos(), angles.sin()};
}

at::Tensor Turned(const TurnCase& c, const TurnInput& in, double direction) {
  at::Tensor out = in.qkv.to(at::kDouble).clone();
  const at::Tensor heads =
      out.view({kTurnRows, c.heads + 2 * c.kv_heads, c.d}).narrow(1, 0, c.heads + c.kv_heads);
  const at::Tensor index = in.positions.to(at::kLong);
  const at::Tensor cosine = in.cosine.to(at::kDouble).index_select(0, index).unsqueeze(1);
  const at::Tensor sine = in.sine.to(at::kDouble).index_select(0, index).unsqueeze(1) * direction;
  const auto dims = [&](int64_t which) {
    return c.interleaved ? heads.slice(2, which, 2 * c.half, 2)
                         : heads.narrow(2, which * c.half, c.half);
  };
  at::Tensor low = dims(0), high = dims(1);
  const at::Tensor turned_low = low * cosine - high * sine;
  const at::Tensor turned_high = high * cosine + low * sine;
  low.copy_(turned_low);
  high.copy_(turned_high);
  return out;
}

Rotate TurnArgs(const TurnCase& c, const TurnInput& in, at::Tensor& out, float direction) {
  Rotate rotate;
  rotate.element = parallel::ElementOf(in.qkv);
  rotate.rows = kTurnRows;
  rotate.heads = c.heads;
  rotate.kv_heads = c.kv_heads;
  rotate.head_dim = c.d;
  rotate.half = c.half;
  rotate.interleaved = c.interleaved;
  rotate.in = in.qkv.const_data_ptr();
  rotate.out = out.data_ptr();
  rotate.positions = in.positions.const_data_ptr<int32_t>();
  rotate.cosine = in.cosine.const_data_ptr<float>();
  rotate.sine = in.sine.const_data_ptr<float>();
  rotate.direction = direction;
  return rotate;
}

// All of a head and a part of it, with lengths that fill packs and that do not.
constexpr TurnCase kTurnCases[] = {{4, 2, 64, 32},      {3, 1, 32, 8},        {2, 2, 10, 5},
                                   {3, 2, 12, 2},       {4, 2, 64, 32, true}, {3, 1, 32, 8, true},
                                   {2, 2, 10, 5, true}, {3, 2, 12, 2, true}};

TEST(RotationKernel, TurnsPairsToAnotherPlaceAndInPlace) {
  for (const TurnCase& c : kTurnCases) {
    for (const at::ScalarType type : kTypes) {
      for (const float direction : {1.0f, -1.0f}) {
        const TurnInput in = DrawnTurn(c, type);
        const auto found = InBothOrders([&](const KernelTable& table) {
          at::Tensor out = at::full_like(in.qkv, NAN);
          table.rotate(TurnArgs(c, in, out, direction), nullptr);
          TurnInput same = in;
          same.qkv = in.qkv.clone();
          table.rotate(TurnArgs(c, same, same.qkv, direction), nullptr);
          return std::vector<at::Tensor>{out, same.qkv};
        });
        ExpectClose(found[0], Turned(c, in, direction), "qkv");
        EXPECT_TRUE(at::equal(found[0], found[1]));
      }
    }
  }
}

TEST(RotationKernel, WritesKeysAndValuesToTheirBlocks) {
  constexpr int64_t kBlocks = 5, kSize = 4;
  const at::Tensor slots = at::tensor({7, 0, 19, -1, 13, 2}, at::kInt);  // -1: nowhere
  for (TurnCase c : kTurnCases) {
    for (const bool turns : {true, false}) {
      for (const at::ScalarType type : kTypes) {
        const TurnInput in = DrawnTurn(c, type);
        const auto found = InBothOrders([&](const KernelTable& table) {
          at::Tensor out = in.qkv.clone();
          at::Tensor keys = at::full({kBlocks, c.kv_heads, kSize, c.d}, 9, in.qkv.options());
          at::Tensor values = keys.clone();
          Rotate rotate = TurnArgs(c, in, out, 1);
          rotate.in = out.const_data_ptr();
          if (!turns) rotate.half = 0;
          rotate.kv = {keys.data_ptr(), values.data_ptr(), slots.const_data_ptr<int32_t>(), kSize};
          table.rotate(rotate, nullptr);
          return std::vector<at::Tensor>{out, keys, values};
        });
        const at::Tensor expected = turns ? Turned(c, in, 1) : in.qkv.to(at::kDouble);
        ExpectClose(found[0], expected, "qkv");
        // The cache has what the row has, and nothing else is touched.
        at::Tensor keys = at::full_like(found[1], 9), values = at::full_like(found[2], 9);
        const at::Tensor heads = found[0].view({kTurnRows, c.heads + 2 * c.kv_heads, c.d});
        for (int64_t row = 0; row < kTurnRows; ++row) {
          const int64_t slot = slots[row].item<int64_t>();
          if (slot < 0) continue;
          keys[slot / kSize]
              .select(1, slot % kSize)
              .copy_(heads[row].narrow(0, c.heads, c.kv_heads));
          values[slot / kSize]
              .select(1, slot % kSize)
              .copy_(heads[row].narrow(0, c.heads + c.kv_heads, c.kv_heads));
        }
        EXPECT_TRUE(at::equal(found[1], keys));
        EXPECT_TRUE(at::equal(found[2], values));
      }
    }
  }
}

}  // namespace
}  // namespace keel::gpu
