#include "model/ops/delta_rule.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <span>
#include <vector>

#include "model/ops/delta_chunks.h"
#include "model/ops/sigmoid_gate.h"
#include "parallel/tensor/host_kernels.h"

namespace keel::model {
namespace {

// Five value heads of each of two key heads; of odd sizes.
constexpr DeltaShape kShape = {2, 10, 12, 37, 4};

parallel::Parameter ParameterOf(const at::Tensor& value) {
  parallel::Parameter p;
  p.shape = Dims(std::span(value.sizes().data(), value.sizes().size()));
  p.value = value.detach().requires_grad_(true);
  p.gradient = at::zeros(value.sizes(), at::kFloat);
  return p;
}

// A packed batch: a text of one token, and some that are longer than what is computed together.
struct Batch {
  Packing packing;
  at::Tensor x, a, b;
  parallel::Parameter conv, a_log, dt_bias;

  explicit Batch(at::ScalarType dtype) {
    at::manual_seed(7);
    packing.boundaries = {0, 1, 66, 130, 340, 345};
    std::vector<at::Tensor> positions;
    for (size_t i = 0; i < packing.sequences(); ++i)
      positions.push_back(at::arange(packing.tokens(i), at::kInt));
    packing.positions = at::cat(positions);
    const auto draw = [&](std::vector<int64_t> sizes, double scale) {
      return (at::randn(sizes) * scale).to(dtype);
    };
    x = draw({345, kShape.channels()}, 1).requires_grad_(true);
    a = draw({345, kShape.value_heads}, 1).requires_grad_(true);
    b = draw({345, kShape.value_heads}, 1).requires_grad_(true);
    conv = ParameterOf(draw({kShape.channels(), 1, kShape.taps}, 0.5));
    a_log = ParameterOf(draw({kShape.value_heads}, 0.5) - 2);
    dt_bias = ParameterOf(draw({kShape.value_heads}, 1));
  }
  at::Tensor Mixed() {
    return GatedDeltaRule({CausalConvolution(x, conv, packing), a, b}, {&a_log, &dt_bias}, kShape,
                          packing);
  }
};

// The same by PyTorch's operations, in graphs of its own.
at::Tensor ByOperations(const Batch& batch, const at::Tensor& conv, const at::Tensor& a_log,
                        const at::Tensor& dt_bias) {
  const at::Tensor qkv = ConvolvedByPositions(batch.x, conv, batch.packing.positions);
  const DeltaGates gates = GatesOf({qkv, batch.a, batch.b}, a_log, dt_bias);
  const at::Tensor state =
      at::zeros({1, kShape.value_heads, kShape.key_dim, kShape.value_dim}, at::kFloat);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < batch.packing.sequences(); ++i) {
    const auto text = [&](const at::Tensor& t) {
      return t.narrow(0, batch.packing.boundaries[i], batch.packing.tokens(i)).unsqueeze(0);
    };
    out.push_back(
        Recur(text(qkv), {text(gates.log_decay), text(gates.beta)}, kShape, state).out.squeeze(0));
  }
  return at::cat(out);
}

void ExpectClose(const at::Tensor& found, const at::Tensor& expected, double most,
                 const char* what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const double size = expected.to(at::kFloat).abs().max().item<double>();
  EXPECT_GT(size, 0) << what;
  EXPECT_LE((found.to(at::kFloat) - expected.to(at::kFloat)).abs().max().item<double>(),
            most * size)
      << what;
}

TEST(DeltaRuleOps, HostsAndDevicesComputeTheSameAndItsGradients) {
  for (const auto& [dtype, most] : {std::pair(at::kFloat, 2e-5), std::pair(at::kBFloat16, 3e-2)}) {
    Batch batch(dtype);
    const at::Tensor mixed = batch.Mixed();
    const at::Tensor dout = at::randn(mixed.sizes()).to(dtype);
    const std::vector<at::Tensor> inputs = {batch.x, batch.a, batch.b};
    const auto found = torch::autograd::grad({mixed}, inputs, {dout});

    std::vector<at::Tensor> all = inputs;
    for (parallel::Parameter* p : {&batch.conv, &batch.a_log, &batch.dt_bias})
      all.push_back(p->value.detach().to(at::kFloat, false, true).requires_grad_(true));
    const at::Tensor other = ByOperations(batch, all[3], all[4], all[5]);
    const auto expected = torch::autograd::grad({other}, all, {dout});
    ExpectClose(mixed, other, most, "results");
    const char* const names[] = {"x", "a", "b"};
    for (size_t i = 0; i < 3; ++i) ExpectClose(found[i], expected[i], most, names[i]);
    ExpectClose(batch.conv.gradient, expected[3], most, "conv1d");
    ExpectClose(batch.a_log.gradient, expected[4], most, "A_log");
    ExpectClose(batch.dt_bias.gradient, expected[5], most, "dt_bias");
  }
}

// Generation of the same texts, in parts of several lengths beside each other, in slots that others
// have used: to the bit by kernels for hosts.
TEST(DeltaRuleOps, StatesOfGenerationGiveTheBitsOfTraining) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Batch batch(dtype);
    const at::NoGradGuard no_grad;
    const at::Tensor expected = batch.Mixed();
    const RecurrentStates states = {
        at::full({7, kShape.value_heads, kShape.key_dim, kShape.value_dim}, 99, at::kFloat),
        at::full({7, kShape.taps - 1, kShape.channels()}, 99, dtype)};
    const std::vector<int32_t> slots = {6, 2, 0, 5, 3};
    std::vector<int64_t> done(5);
    at::Tensor found = at::empty_like(expected);
    for (int round = 0; done != std::vector<int64_t>{1, 65, 64, 210, 5}; ++round) {
      std::vector<DecodeSequence> sequences;
      std::vector<int64_t> rows;
      for (size_t i = 0; i < 5; ++i) {
        const int64_t left = batch.packing.tokens(i) - done[i];
        const int64_t count =
            std::min<int64_t>(left, 1 + (round * 5 + static_cast<int>(i) * 3) % 17);
        if (count == 0) continue;
        DecodeSequence s{done[i], count, batch.packing.tokens(i), {}, slots[i]};
        for (int64_t t = 0; t < count; ++t) rows.push_back(batch.packing.boundaries[i] + done[i]++);
        sequences.push_back(s);
      }
      const at::Tensor index = at::tensor(rows, at::kLong);
      const auto part = [&](const at::Tensor& t) { return t.index_select(0, index); };
      const RecurrentLayer layer = {sequences, states};
      const at::Tensor qkv = CausalConvolution(part(batch.x), batch.conv, layer);
      found.index_copy_(0, index,
                        GatedDeltaRule({qkv, part(batch.a), part(batch.b)},
                                       {&batch.a_log, &batch.dt_bias}, kShape, layer));
    }
    if (parallel::ByHostKernels(expected)) {
      EXPECT_TRUE(at::equal(found, expected)) << dtype;
    } else {  // chunks are cut elsewhere
      ExpectClose(found, expected, dtype == at::kFloat ? 2e-5 : 3e-2, "generation");
    }
    // A slot of nobody is as it was.
    EXPECT_TRUE(states.states[1].eq(99).all().item<bool>());
    EXPECT_TRUE(states.inputs[4].eq(99).all().item<bool>());
  }
}

TEST(SigmoidGate, IsWhatPyTorchComputes) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({5, 33}).requires_grad_(true);
  const at::Tensor both = at::randn({5, 70}).requires_grad_(true);
  const at::Tensor gates = both.narrow(1, 37, 33);  // rows stand apart
  const at::Tensor dout = at::randn({5, 33});
  const at::Tensor found = SigmoidGate(x, gates);
  const at::Tensor expected = x * at::sigmoid(gates);
  ExpectClose(found, expected, 1e-6, "results");
  const auto mine = torch::autograd::grad({found}, {x, both}, {dout});
  const auto theirs = torch::autograd::grad({expected}, {x, both}, {dout});
  ExpectClose(mine[0], theirs[0], 1e-6, "x");
  ExpectClose(mine[1], theirs[1], 1e-6, "gates");
}

}  // namespace
}  // namespace keel::model
