// RMS norm's kernels against its definition in fp64.

#include "gpu/rms_norm.h"

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

constexpr float kEps = 1e-3f;
constexpr float kOffset = 0.5f;

at::Tensor Normalized(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt((x * x).mean({-1}, true) + static_cast<double>(kEps)) *
         (weight + static_cast<double>(kOffset));
}

struct NormCase {
  int64_t rows, n;
};

// Lengths for a warp and for a block, that fill packs of 16 bytes and that do not, and one whose
// sums no block's memory holds, one of those just so.
constexpr NormCase kNormCases[] = {{7, 24},   {5, 33},    {600, 64}, {3, 1001},
                                   {9, 2048}, {2, 12288}, {2, 13000}};

TEST(RmsNormKernel, EqualsItsDefinition) {
  for (const NormCase& c : kNormCases) {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor x = Draw(1, {c.rows, c.n}, type);
      const at::Tensor w = Draw(2, {c.n}, type);
      const at::Tensor dy = Draw(3, {c.rows, c.n}, type);
      at::Tensor x64 = Wide(x), w64 = Wide(w);
      const at::Tensor y64 = Normalized(x64, w64);
      (y64 * dy.to(at::kDouble)).sum().backward();
      const auto found = InBothOrders([&](const KernelTable& table) {
        at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
        at::Tensor rstd = at::empty({c.rows});
        at::Tensor dw = at::ones({c.n});  // of earlier micro-batches, which is added to
        RmsNorm norm;
        norm.element = parallel::ElementOf(x);
        norm.vectors = {c.rows, 1, c.n, c.n};
        norm.x = x.const_data_ptr();
        norm.weight = w.const_data_ptr();
        norm.eps = kEps;
        norm.offset = kOffset;
        norm.out = y.data_ptr();
        norm.rstd = rstd.data_ptr<float>();
        table.rms_norm(norm, nullptr);
        RmsNormBackward backward;
        backward.element = norm.element;
        backward.vectors = norm.vectors;
        backward.dy = dy.const_data_ptr();
        backward.x = x.const_data_ptr();
        backward.weight = w.const_data_ptr();
        backward.offset = kOffset;
        backward.rstd = rstd.const_data_ptr<float>();
        backward.dx = dx.data_ptr();
        backward.weight_gradient = dw.data_ptr<float>();
        at::Tensor scratch = at::full({WeightGradientParts(norm.vectors), c.n}, NAN);
        backward.scratch = scratch.data_ptr<float>();
        table.rms_norm_backward(backward, nullptr);
        return std::vector<at::Tensor>{y, dx, dw};
      });
      const std::string what = std::to_string(c.rows) + " x " + std::to_string(c.n);
      ExpectClose(found[0], y64, "y, " + what);
      ExpectClose(found[1], x64.grad(), "dx, " + what);
      ExpectClose(found[2] - 1, w64.grad(), "dw, " + what, 4e-6);
    }
  }
}

TEST(RmsNormKernel, NormalisesASumAndAddsItsGradient) {
  constexpr int64_t kRows = 6, kN = 1032;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = Draw(4, {kRows, kN}, type), add = Draw(5, {kRows, kN}, type);
    const at::Tensor w = Draw(6, {kN}, type);
    const at::Tensor dy = Draw(7, {kRows, kN}, type), dsum = Draw(8, {kRows, kN}, type);
    const at::Tensor sum = x + add;  // rounded, as the stream is
    at::Tensor sum64 = Wide(sum), w64 = Wide(w);
    const at::Tensor y64 = Normalized(sum64, w64);
    (y64 * dy.to(at::kDouble)).sum().backward();
    const auto found = InBothOrders([&](const KernelTable& table) {
      at::Tensor stream = x.clone(), y = at::empty_like(x), dx = dy.clone();
      at::Tensor rstd = at::empty({kRows}), dw = at::zeros({kN});
      RmsNorm norm;
      norm.element = parallel::ElementOf(x);
      norm.vectors = {kRows, 1, kN, kN};
      norm.x = stream.const_data_ptr();
      norm.add = add.const_data_ptr();
      norm.sum = stream.data_ptr();  // in place
      norm.weight = w.const_data_ptr();
      norm.eps = kEps;
      norm.offset = kOffset;
      norm.out = y.data_ptr();
      norm.rstd = rstd.data_ptr<float>();
      table.rms_norm(norm, nullptr);
      at::Tensor scratch = at::empty({WeightGradientParts(norm.vectors), kN});
      RmsNormBackward backward;
      backward.element = norm.element;
      backward.vectors = norm.vectors;
      backward.dy = dx.const_data_ptr();
      backward.dx = dx.data_ptr();  // in place
      backward.x = stream.const_data_ptr();
      backward.dsum = dsum.const_data_ptr();
      backward.weight = w.const_data_ptr();
      backward.offset = kOffset;
      backward.rstd = rstd.const_data_ptr<float>();
      backward.weight_gradient = dw.data_ptr<float>();
      backward.scratch = scratch.data_ptr<float>();
      table.rms_norm_backward(backward, nullptr);
      return std::vector<at::Tensor>{stream, y, dx, dw};
    });
    EXPECT_TRUE(at::equal(found[0], sum));
    ExpectClose(found[1], y64, "y");
    // Two roundings.
    const at::Tensor error =
        (found[2].to(at::kDouble) - (sum64.grad() + dsum.to(at::kDouble))).abs();
    EXPECT_LE(error.max().item<double>(), type == at::kFloat ? 4e-6 : 6e-2);
    ExpectClose(found[3], w64.grad(), "dw", 4e-6);
  }
}

// Heads within rows that have more than heads: what is not normalised stays.
TEST(RmsNormKernel, NormalisesHeadsWhereTheyStand) {
  constexpr int64_t kRows = 5, kHeads = 3, kD = 16, kWidth = 7 * kD;
  const at::Tensor x = Draw(9, {kRows, kWidth});
  const at::Tensor w = Draw(10, {kD});
  const auto found = InBothOrders([&](const KernelTable& table) {
    at::Tensor y = x.clone();
    RmsNorm norm;
    norm.vectors = {kRows, kHeads, kD, kWidth};
    norm.x = y.data_ptr<float>() + 2 * kD;
    norm.out = y.data_ptr<float>() + 2 * kD;
    norm.weight = w.const_data_ptr();
    norm.eps = kEps;
    norm.offset = kOffset;
    table.rms_norm(norm, nullptr);
    return std::vector<at::Tensor>{y};
  });
  at::Tensor expected = x.to(at::kDouble);
  at::Tensor heads = expected.view({kRows, 7, kD}).narrow(1, 2, kHeads);
  heads.copy_(Normalized(heads.clone(), w.to(at::kDouble)));
  ExpectClose(found[0], expected, "heads");
  EXPECT_TRUE(at::equal(found[0].narrow(1, 0, 2 * kD), x.narrow(1, 0, 2 * kD)));
  EXPECT_TRUE(at::equal(found[0].narrow(1, 5 * kD, 2 * kD), x.narrow(1, 5 * kD, 2 * kD)));
}

}  // namespace
}  // namespace keel::gpu
