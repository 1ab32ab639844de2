// Split layers on all ranks, with their gradients, against the whole layer in fp64 by stock
// PyTorch.

#include "parallel/tensor/tensor_parallel_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "parallel/tensor/host_kernels.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int64_t kLayerTokens = 12;
constexpr int64_t kLayerIn = 12;
constexpr int64_t kLayerOut = 6;

at::Tensor Draw(uint64_t seed, at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator);
}

// A linear layer in fp64, and what a loss of (y * dy).sum() gives each of its inputs.
struct WholeLinear {
  at::Tensor x = Draw(1, {kLayerTokens, kLayerIn});
  at::Tensor weight = Draw(2, {kLayerOut, kLayerIn});
  at::Tensor bias = Draw(3, {kLayerOut});
  at::Tensor dy = Draw(4, {kLayerTokens, kLayerOut});
  at::Tensor y, dx, dweight, dbias;
  WholeLinear() {
    at::Tensor x64 = x.to(at::kDouble).requires_grad_();
    at::Tensor w64 = weight.to(at::kDouble).requires_grad_();
    at::Tensor b64 = bias.to(at::kDouble).requires_grad_();
    y = at::matmul(x64, w64.t()) + b64;
    (y * dy).sum().backward();
    y = y.detach();
    dx = x64.grad();
    dweight = w64.grad();
    dbias = b64.grad();
  }
};

Parameter Holding(const at::Tensor& values) {
  Parameter p;
  p.shape = values.dim() == 1 ? Dims{values.size(0)} : Dims{values.size(0), values.size(1)};
  p.value = values.contiguous().clone().requires_grad_();
  p.gradient = at::ones(values.sizes());  // of earlier micro-batches, which are added to
  return p;
}

void ExpectClose(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5)) << what;
}

// Rank `rank`'s part of n along `dim`.
at::Tensor Part(const at::Tensor& whole, int64_t dim, int rank, int n) {
  const int64_t each = whole.size(dim) / n;
  return whole.narrow(dim, rank * each, each);
}

class LayersTest : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(LayersTest, ColumnParallelIsAPartOfTheWholeOutput) {
  const auto [tp, sequence_parallel] = GetParam();
  const WholeLinear whole;
  keel::testing::RunRanks(tp, 1, 1, [&](ParallelContext& context) {
    const int rank = context.rank();
    const auto tokens = [&](const at::Tensor& all) {
      return sequence_parallel ? Part(all, 0, rank, tp) : all;
    };
    Parameter weight = Holding(Part(whole.weight, 0, rank, tp));
    Parameter bias = Holding(Part(whole.bias, 0, rank, tp));
    at::Tensor x = tokens(whole.x).clone().requires_grad_();
    const ColumnParallelLinear layer({&context.tp(), sequence_parallel}, &weight, &bias);
    const at::Tensor y = layer.Forward(x);
    ExpectClose(y, Part(whole.y, 1, rank, tp), "y");
    (y * Part(whole.dy, 1, rank, tp)).sum().backward();
    ExpectClose(x.grad(), tokens(whole.dx), "dx");
    ExpectClose(weight.gradient - 1, Part(whole.dweight, 0, rank, tp), "dweight");
    ExpectClose(bias.gradient - 1, Part(whole.dbias, 0, rank, tp), "dbias");
    EXPECT_FALSE(weight.value.grad().defined());
  });
}

TEST_P(LayersTest, RowParallelSumsPartsAndAddsTheBiasOnce) {
  const auto [tp, sequence_parallel] = GetParam();
  const WholeLinear whole;
  keel::testing::RunRanks(tp, 1, 1, [&](ParallelContext& context) {
    const int rank = context.rank();
    const auto tokens = [&](const at::Tensor& all) {
      return sequence_parallel ? Part(all, 0, rank, tp) : all;
    };
    Parameter weight = Holding(Part(whole.weight, 1, rank, tp));
    Parameter bias = Holding(whole.bias);
    at::Tensor x = Part(whole.x, 1, rank, tp).contiguous().requires_grad_();
    const RowParallelLinear layer({&context.tp(), sequence_parallel}, &weight, &bias);
    const at::Tensor y = layer.Forward(x);
    ExpectClose(y, tokens(whole.y), "y");
    (y * tokens(whole.dy)).sum().backward();
    ExpectClose(x.grad(), Part(whole.dx, 1, rank, tp), "dx");
    ExpectClose(weight.gradient - 1, Part(whole.dweight, 1, rank, tp), "dweight");
    // Of this rank's tokens alone: see Parameter::gradient_sum_over.
    ExpectClose(bias.gradient - 1, tokens(whole.dy.to(at::kDouble)).sum(0), "dbias");
  });
}

TEST_P(LayersTest, EmbeddingFindsEveryIdOnTheRankThatHasIt) {
  const auto [tp, sequence_parallel] = GetParam();
  constexpr int64_t kIds = 11;  // divides by neither 2 nor 3: the last rank has padding
  const at::Tensor table = Draw(5, {kIds, kLayerOut});
  const at::Tensor ids = at::tensor({0, 10, 3, 3, 5, 6, 7, 9, 1, 10, 4, 8}, at::kLong);
  const at::Tensor dy = Draw(6, {kLayerTokens, kLayerOut});
  const at::Tensor dtable = at::zeros({kIds, kLayerOut}, at::kDouble);
  for (int64_t t = 0; t < kLayerTokens; ++t) dtable[ids[t].item<int64_t>()] += dy[t];
  keel::testing::RunRanks(tp, 1, 1, [&](ParallelContext& context) {
    const int rank = context.rank();
    const int64_t rows = VocabRowsPerRank(kIds, tp);
    const int64_t valid = std::clamp<int64_t>(kIds - rank * rows, 0, rows);
    at::Tensor mine = at::full({rows, kLayerOut}, 100.0);
    mine.narrow(0, 0, valid).copy_(table.narrow(0, rank * rows, valid));
    Parameter weight = Holding(mine);
    const VocabParallelEmbedding layer({&context.tp(), sequence_parallel}, &weight);
    const at::Tensor y = layer.Forward(ids);
    const auto tokens = [&](const at::Tensor& all) {
      return sequence_parallel ? Part(all, 0, rank, tp) : all;
    };
    ExpectClose(y, tokens(table.index_select(0, ids)).to(at::kDouble), "y");
    (y * tokens(dy)).sum().backward();
    at::Tensor expected = at::zeros({rows, kLayerOut}, at::kDouble);
    expected.narrow(0, 0, valid).copy_(dtable.narrow(0, rank * rows, valid));
    ExpectClose(weight.gradient - 1, expected, "dtable");
  });
}

// On a device a bf16 product is added to the fp32 sum as it is, where hosts round it first.
TEST(OneRankLayersTest, WeightGradientsOnADeviceAreRoundedNowhere) {
  const at::Tensor dy = Draw(7, {64, 5}).to(at::kBFloat16);
  const at::Tensor x = Draw(8, {64, 3}).to(at::kBFloat16);
  const at::Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
  at::Tensor gradient = at::zeros({5, 3});
  AccumulateWeightGradient(gradient, dy, x);
  const double error = (gradient.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LT(error, ByHostKernels(dy) ? 0.2 : 1e-5);
}

// A batch with repeated ids: the same bits with any number of threads, and, up to rounding, what a
// sum in double gives.
TEST(OneRankLayersTest, GradientsOfRepeatedIdsRepeatThemselves) {
  constexpr int64_t kTokens = 1024, kIds = 30;
  const at::Tensor ids = Draw(9, {kTokens}).mul(8).to(at::kLong).abs().clamp_max(kIds - 1);
  const at::Tensor dy = Draw(10, {kTokens, kLayerOut});
  const at::Tensor exact =
      at::zeros({kIds, kLayerOut}, at::kDouble).index_add(0, ids, dy.to(at::kDouble));
  const auto group = MakeSingleGroup("tp");
  std::vector<at::Tensor> found;
  for (const int threads : {1, 3, 1}) {
    at::set_num_threads(threads);
    Parameter weight = Holding(Draw(11, {kIds, kLayerOut}));
    weight.gradient.zero_();
    const at::Tensor y = VocabParallelEmbedding({group.get(), false}, &weight).Forward(ids);
    (y * dy).sum().backward();
    found.push_back(weight.gradient);
  }
  EXPECT_TRUE(at::equal(found[0], found[1]));
  EXPECT_TRUE(at::equal(found[0], found[2]));
  EXPECT_LT((found[0].to(at::kDouble) - exact).abs().max().item<double>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Splits, LayersTest,
                         ::testing::Values(std::pair{1, false}, std::pair{2, false},
                                           std::pair{2, true}, std::pair{3, false},
                                           std::pair{3, true}));

}  // namespace
}  // namespace keel::parallel
