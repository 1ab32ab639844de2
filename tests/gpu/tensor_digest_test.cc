// The digest's kernel against the host's, to the bit.

#include "gpu/tensor_digest.h"

#include "common/tensors/tensor_digest.h"
#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

TEST(TensorDigestKernel, IsTheHostsToTheBit) {
  constexpr int64_t kRows = 70, kColumns = 400;
  struct Kind {
    DType dtype;
    at::ScalarType bits;
  };
  for (const Kind& kind : {Kind{DType::kU8, at::kByte}, Kind{DType::kBF16, at::kShort},
                           Kind{DType::kF32, at::kInt}, Kind{DType::kI64, at::kLong}}) {
    const at::Tensor values = Draw(1, {kRows, kColumns}).mul(1e4).to(kind.bits);
    const auto data = static_cast<std::byte*>(values.data_ptr());
    // All, a part that fills one part of a sum and a bit, and one whose rows are elsewhere in
    // memory.
    for (const Box& box :
         {Box{{0, 0}, {kRows, kColumns}}, Box{{3, 17}, {60, 300}}, Box{{69, 399}, {1, 1}}}) {
      const Dims shape = {kRows, kColumns};
      const StridedView all = {data, ContiguousStrides(shape)};
      const uint64_t expected = BoxDigest(shape, kind.dtype, box, Box::Whole(shape), all);
      const auto found = InBothOrders([&](const KernelTable& table) {
        at::Tensor parts = at::empty({DigestParts(box.size[0] * box.size[1])}, at::kLong);
        const int64_t first = box.offset[0] * kColumns + box.offset[1];
        TensorDigest args;
        args.element_size = values.element_size();
        args.rows = box.size[0];
        args.columns = box.size[1];
        args.data = data + first * values.element_size();
        args.stride = kColumns;
        args.index = first;
        args.index_stride = kColumns;
        args.parts = parts.data_ptr<int64_t>();
        table.tensor_digest(args, nullptr);
        return std::vector<at::Tensor>{parts};
      });
      EXPECT_EQ(static_cast<uint64_t>(found[0].sum().item<int64_t>()), expected);
    }
  }
}

}  // namespace
}  // namespace keel::gpu
