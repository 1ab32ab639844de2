// A frozen weight of several tensors with adapters beside some of them, against the same in fp64 by
// stock PyTorch.

#include "parallel/tensor/adapted_linear.h"

#include <gtest/gtest.h>

#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::parallel {
namespace {

constexpr int64_t kAdaptedRows = 7, kAdaptedIn = 12, kRank = 3;

// Rows 0..4 of tensor 0, 4..9 of one without an adapter, 9..11 of tensor 1, 11..13 of tensor 0.
const std::vector<Adapter::Run> kRuns = {{0, 0, 0, 4}, {1, 9, 4, 2}, {0, 11, 6, 2}};

struct Layer {
  Parameter weight, a, b;
  explicit Layer(at::ScalarType dtype, bool learns) {
    at::manual_seed(3);
    const auto fill = [&](Parameter& p, int64_t rows, int64_t columns) {
      p.shape = {rows, columns};
      p.value = at::randn({rows, columns}).to(dtype).requires_grad_(learns);
      p.gradient = at::ones({rows, columns});  // of earlier micro-batches
    };
    fill(weight, 13, kAdaptedIn);
    weight.frozen = true;
    weight.value.requires_grad_(false);
    weight.gradient = at::empty({0});
    fill(a, 2 * kRank, kAdaptedIn);
    fill(b, 8, kRank);
    weight.adapter = {&a, &b, kRank, 0.7, kRuns, true};
  }
  // The weight that the layer amounts to.
  at::Tensor Whole(const at::Tensor& a64, const at::Tensor& b64) const {
    at::Tensor whole = weight.value.to(at::kDouble).clone();
    for (const Adapter::Run& run : kRuns) {
      whole.narrow(0, run.weight_row, run.rows)
          .add_(
              at::mm(b64.narrow(0, run.b_row, run.rows), a64.narrow(0, run.tensor * kRank, kRank)),
              0.7);
    }
    return whole;
  }
};

TEST(AdaptedLinearTest, ValueAndGradients) {
  Layer layer(at::kFloat, true);
  const at::Tensor bias = at::randn({13});
  Parameter bias_parameter;
  bias_parameter.shape = {13};
  bias_parameter.frozen = true;
  bias_parameter.value = bias;
  const at::Tensor x = at::randn({kAdaptedRows, kAdaptedIn}).requires_grad_();
  const at::Tensor dy = at::randn({kAdaptedRows, 13});
  const at::Tensor y = Linear(x, layer.weight, &bias_parameter, Arithmetic::kTraining);
  (y * dy).sum().backward();

  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  at::Tensor a64 = layer.a.value.detach().to(at::kDouble).requires_grad_();
  at::Tensor b64 = layer.b.value.detach().to(at::kDouble).requires_grad_();
  const at::Tensor wanted = at::mm(x64, layer.Whole(a64, b64).t()) + bias;
  (wanted * dy).sum().backward();
  const auto near = [](const at::Tensor& found, const at::Tensor& expected) {
    return at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-4);
  };
  EXPECT_TRUE(near(y, wanted));
  EXPECT_TRUE(near(x.grad(), x64.grad()));
  EXPECT_TRUE(near(layer.a.gradient, a64.grad() + 1));
  EXPECT_TRUE(near(layer.b.gradient, b64.grad() + 1));
  EXPECT_FALSE(layer.a.value.grad().defined());
}

// The first layer's input asks for no gradient, and its adapter learns all the same.
TEST(AdaptedLinearTest, LearnsFromAnInputWithoutGradient) {
  Layer layer(at::kFloat, true);
  const at::Tensor x = at::randn({kAdaptedRows, kAdaptedIn});
  Linear(x, layer.weight, nullptr, Arithmetic::kTraining).sum().backward();
  EXPECT_GT((layer.a.gradient - 1).abs().max().item<float>(), 0);
}

TEST(AdaptedLinearTest, SwitchedOffItIsTheBase) {
  Layer layer(at::kFloat, false);
  const at::Tensor x = at::randn({kAdaptedRows, kAdaptedIn});
  const at::Tensor base = at::mm(x, layer.weight.value.t());
  layer.weight.adapter->on = false;
  at::Tensor out = at::empty({kAdaptedRows, 13});
  LinearInto(x, layer.weight, nullptr, out, Arithmetic::kGeneration);
  EXPECT_TRUE(
      at::allclose(Linear(x, layer.weight, nullptr, Arithmetic::kTraining), base, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(out, base, 1e-4, 1e-5));
  layer.weight.adapter->on = true;
  EXPECT_FALSE(at::allclose(Linear(x, layer.weight, nullptr, Arithmetic::kTraining), base));
}

// What a rollout says of a row is what a training with its bits does, however many stand beside it.
TEST(AdaptedLinearTest, GenerationHasTheBitsOfBatchInvariantTraining) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Layer layer(dtype, false);
    const at::Tensor x = at::randn({kAdaptedRows, kAdaptedIn}).to(dtype);
    const at::Tensor trained = Linear(x, layer.weight, nullptr, Arithmetic::kBatchInvariant);
    for (int64_t row = 0; row < kAdaptedRows; ++row) {
      at::Tensor out = at::empty({1, 13}, x.options());
      LinearInto(x.narrow(0, row, 1), layer.weight, nullptr, out, Arithmetic::kBatchInvariant);
      EXPECT_TRUE(at::equal(out[0], trained[row])) << dtype << " " << row;
    }
  }
}

// Also beside all of a weight's rows, whose number is no multiple of anything, and scaled by what
// has no exact value.
TEST(AdaptedLinearTest, ARowHasItsBitsWhereverItStands) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Layer layer(dtype, false);
    layer.weight.adapter->runs = {{0, 0, 0, 8}};
    layer.weight.adapter->scale = 7.0 / 3;
    layer.weight.shape = {8, kAdaptedIn};
    layer.weight.value = layer.weight.value.narrow(0, 0, 8).contiguous();
    for (const int64_t columns : {8, 5}) {
      layer.weight.adapter->runs[0].rows = columns;
      layer.weight.value = layer.weight.value.narrow(0, 0, columns).contiguous();
      const at::Tensor x = at::randn({61, kAdaptedIn}).to(dtype);
      const at::Tensor all = Linear(x, layer.weight, nullptr, Arithmetic::kBatchInvariant);
      for (const int64_t rows : {1, 3, 7, 60}) {
        at::Tensor out = at::empty({rows, columns}, x.options());
        LinearInto(x.narrow(0, 61 - rows, rows), layer.weight, nullptr, out,
                   Arithmetic::kBatchInvariant);
        EXPECT_TRUE(at::equal(out, all.narrow(0, 61 - rows, rows))) << dtype << " " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace keel::parallel
