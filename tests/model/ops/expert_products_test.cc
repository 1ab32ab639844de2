// The products of rows sorted by expert against their definition, an expert at a time in fp64; on a
// pretend GPU, where the host does not know the rows, too.

#include "model/ops/expert_products.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace keel::model {
namespace {

using keel::testing::LoneDevice;
using parallel::Arithmetic;

constexpr int64_t kSortedTokens = 23;

struct Case {
  int64_t experts, top_k, n, k;
};
constexpr Case kCases[] = {{5, 2, 16, 24}, {1, 1, 8, 8}, {40, 2, 8, 16}, {3, 3, 24, 8}};

at::Tensor Normal(uint64_t seed, at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator);
}

at::Tensor Chosen(const Case& c, uint64_t seed, int64_t tokens = kSortedTokens) {
  return std::get<1>(at::topk(Normal(seed, {tokens, c.experts}), c.top_k, 1));
}

// Rows as the device has them where it can, and as the host sorted them.
struct Both {
  ExpertRows there, known;
  Both(const Case& c, const at::Tensor& chosen, at::Device device)
      : there(device.is_cuda() ? SortByExpertInPlace(chosen.to(device), c.experts)
                               : SortByExpert(chosen, c.experts)),
        known(SortByExpert(chosen, c.experts)) {}
};

void ExpectRounded(const at::Tensor& found, const at::Tensor& exact, const char* what) {
  const at::Tensor f = found.to(at::kCPU, at::kDouble);
  EXPECT_TRUE(at::allclose(f, exact, 1.0 / 128, 1e-4)) << what;
}

TEST(ExpertProducts, AreThoseOfEachExpertsRows) {
  const at::Device device = LoneDevice();
  for (const Case& c : kCases) {
    const Both rows(c, Chosen(c, 3), device);
    const at::Tensor x = Normal(4, {kSortedTokens * c.top_k, c.k}).to(at::kBFloat16);
    const at::Tensor w = Normal(5, {c.experts, c.n, c.k}).to(at::kBFloat16);
    at::Tensor exact = at::zeros({x.size(0), c.n}, at::kDouble);
    for (size_t e = 0; e < static_cast<size_t>(c.experts); ++e) {
      for (int64_t row = rows.known.begins[e]; row < rows.known.begins[e + 1]; ++row)
        exact[row] = w[static_cast<int64_t>(e)].to(at::kDouble).mv(x[row].to(at::kDouble));
    }
    for (const Arithmetic way :
         {Arithmetic::kTraining, Arithmetic::kGeneration, Arithmetic::kBatchInvariant}) {
      ExpectRounded(ExpertProduct(rows.there, x.to(device), w.to(device).transpose(1, 2), way),
                    exact, "x w^T");
    }
    // By the rows of the matrices, as a backward has it.
    const at::Tensor turned = w.transpose(1, 2).contiguous().to(device);
    ExpectRounded(ExpertProduct(rows.there, x.to(device), turned, Arithmetic::kTraining), exact,
                  "x w");
  }
}

TEST(ExpertProducts, AddWhatEachExpertsRowsGive) {
  const at::Device device = LoneDevice();
  for (const Case& c : kCases) {
    const Both rows(c, Chosen(c, 6), device);
    const at::Tensor x = Normal(7, {kSortedTokens * c.top_k, c.k}).to(at::kBFloat16);
    const at::Tensor dy = Normal(8, {kSortedTokens * c.top_k, c.n}).to(at::kBFloat16);
    const at::Tensor before = Normal(9, {c.experts, c.n, c.k});
    at::Tensor exact = before.to(at::kDouble);
    for (size_t e = 0; e < static_cast<size_t>(c.experts); ++e) {
      for (int64_t row = rows.known.begins[e]; row < rows.known.begins[e + 1]; ++row)
        exact[static_cast<int64_t>(e)].add_(
            at::outer(dy[row].to(at::kDouble), x[row].to(at::kDouble)));
    }
    at::Tensor gradient = before.to(device, at::kFloat, false, /*copy=*/true);
    AddExpertGradient(gradient, rows.there, dy.to(device), x.to(device));
    // The product is rounded, and not the sum.
    EXPECT_TRUE(at::allclose(gradient.to(at::kCPU, at::kDouble) - before.to(at::kDouble),
                             exact - before.to(at::kDouble), 1.0 / 128, 1e-4));
  }
}

// With more rows than a piece has, and fewer.
TEST(ExpertProducts, OfAFixedHeightDoNotDependOnTheOtherRows) {
  const at::Device device = LoneDevice();
  const Case c = {3, 2, 16, 8};
  for (const int64_t tokens : {40, 200}) {
    const at::Tensor chosen = Chosen(c, 10, tokens);
    const at::Tensor x = Normal(11, {tokens, c.k}).to(at::kBFloat16);
    const at::Tensor w = Normal(12, {c.experts, c.n, c.k}).to(at::kBFloat16).to(device);
    const auto by_token = [&](int64_t first, int64_t count) {
      const ExpertRows rows = Both(c, chosen.narrow(0, first, count), device).there;
      return rows
          .Gather(ExpertProduct(rows, rows.Spread(x.narrow(0, first, count).to(device)),
                                w.transpose(1, 2), Arithmetic::kBatchInvariant))
          .cpu();
    };
    const at::Tensor all = by_token(0, tokens);
    for (int64_t token = 0; token < tokens; token += 13)
      EXPECT_TRUE(at::equal(by_token(token, 1)[0], all[token])) << token << " of " << tokens;
  }
}

TEST(ExpertProducts, NoRowsGiveNone) {
  const at::Device device = LoneDevice();
  const Case c = {3, 2, 16, 8};
  const Both rows(c, at::empty({0, 2}, at::kLong), device);
  const at::Tensor x = at::empty({0, c.k}, at::TensorOptions(device).dtype(at::kBFloat16));
  const at::Tensor w = at::zeros({c.experts, c.k, c.n}, x.options());
  EXPECT_EQ(ExpertProduct(rows.there, x, w, Arithmetic::kTraining).sizes(),
            (at::IntArrayRef{0, c.n}));
  at::Tensor gradient = at::zeros({c.experts, c.n, c.k}, x.options().dtype(at::kFloat));
  AddExpertGradient(gradient, rows.there, at::empty({0, c.n}, x.options()), x);
  EXPECT_EQ(gradient.cpu().abs().sum().item<float>(), 0);
}

// The host waits for those, and knows the rows.
TEST(ExpertProducts, OfOtherNumbersAndWidthsAreNotGrouped) {
  const auto on = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    return HasGroupedProduct(at::zeros(shape, at::TensorOptions(LoneDevice()).dtype(dtype)), 4);
  };
  EXPECT_EQ(on({32, 16}, at::kBFloat16), keel::testing::OnPretendGpus());
  EXPECT_FALSE(on({32, 16}, at::kFloat));
  EXPECT_FALSE(on({32, 20}, at::kBFloat16));
  EXPECT_FALSE(on({80, 16}, at::kBFloat16));
}

}  // namespace
}  // namespace keel::model
