// The feed-forward of experts against its definition in fp64, expert by expert for every token, and
// generation's rows against training's and against themselves in other company.

#include "model/layers/moe.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <utility>

#include "parallel/groups/process_group.h"
#include "tests/support/ranks.h"

namespace keel::model {
namespace {

using parallel::Arithmetic;

constexpr int64_t kHidden = 24;
constexpr int64_t kTokens = 19;

at::Tensor Draw(uint64_t seed, at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator) * 0.5;
}

struct Moe {
  parallel::Parameter router, gate_up, down, router_bias, gate_up_bias, down_bias;
  MoeFeedForward ffn;

  explicit Moe(const MoeSpec& spec, at::ScalarType dtype = at::kFloat,
               at::Device device = at::kCPU) {
    const auto fill = [&](parallel::Parameter& p, uint64_t seed, at::IntArrayRef shape) {
      p.shape = Dims(shape);
      p.value = Draw(seed, shape).to(dtype).to(device).requires_grad_();
      p.gradient = at::zeros(shape, at::TensorOptions(device));
    };
    fill(router, 1, {spec.experts, kHidden});
    if (spec.kind == ExpertKind::kClamped) {
      fill(gate_up, 2, {spec.experts * kHidden, 2 * spec.width});
      fill(down, 3, {spec.experts * spec.width, kHidden});
      fill(router_bias, 4, {spec.experts});
      fill(gate_up_bias, 5, {spec.experts * 2 * spec.width});
      fill(down_bias, 6, {spec.experts * kHidden});
      ffn.router_bias = &router_bias;
      ffn.gate_up_bias = &gate_up_bias;
      ffn.down_bias = &down_bias;
      ffn.adds_down_bias = true;
    } else {
      fill(gate_up, 2, {spec.experts * 2 * spec.width, kHidden});
      fill(down, 3, {spec.experts * kHidden, spec.width});
    }
    ffn.router = &router;
    ffn.gate_up = &gate_up;
    ffn.down = &down;
    ffn.spec = spec;
  }
};

struct Exact {
  at::Tensor x, router, gate_up, down, y, router_bias, gate_up_bias, down_bias;
};

// What expert `e` makes of a token, as transformers' GptOssExperts has it.
at::Tensor ClampedExpert(const Exact& all, const MoeSpec& spec, int64_t e, const at::Tensor& x) {
  const auto of = [&](const at::Tensor& w) {
    return w.view({spec.experts, -1, w.size(1)}).select(0, e);
  };
  const auto bias_of = [&](const at::Tensor& b) { return b.view({spec.experts, -1}).select(0, e); };
  const at::Tensor both = x.matmul(of(all.gate_up)) + bias_of(all.gate_up_bias);
  const at::Tensor gate = both.slice(0, 0, both.size(0), 2).clamp_max(spec.gate_limit);
  const at::Tensor up = both.slice(0, 1, both.size(0), 2).clamp(-spec.gate_limit, spec.gate_limit);
  const at::Tensor unit = (up + 1) * (gate * at::sigmoid(gate * spec.gate_alpha));
  return unit.matmul(of(all.down)) + bias_of(all.down_bias);
}

Exact FromItsDefinition(const Moe& moe, const at::Tensor& x) {
  const MoeSpec& spec = moe.ffn.spec;
  const auto exact = [](const at::Tensor& t) {
    return t.detach().to(at::kDouble).requires_grad_();
  };
  Exact e;
  e.x = exact(x);
  e.router = exact(moe.router.value);
  e.gate_up = exact(moe.gate_up.value);
  e.down = exact(moe.down.value);
  const bool clamped = spec.kind == ExpertKind::kClamped;
  if (clamped) {
    e.router_bias = exact(moe.router_bias.value);
    e.gate_up_bias = exact(moe.gate_up_bias.value);
    e.down_bias = exact(moe.down_bias.value);
  }
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const at::Tensor logits = e.router.matmul(e.x[t]);
    const at::Tensor probs = at::softmax(clamped ? logits + e.router_bias : logits, 0);
    const at::Tensor best = std::get<1>(at::topk(probs, spec.top_k));
    at::Tensor sum = at::zeros({kHidden}, at::kDouble);
    at::Tensor weights = probs.index_select(0, best);
    if (spec.renormalize) weights = weights / weights.sum();
    for (int64_t j = 0; j < spec.top_k; ++j) {
      const int64_t expert = best[j].item<int64_t>();
      if (clamped) {
        sum = sum + weights[j] * ClampedExpert(e, spec, expert, e.x[t]);
        continue;
      }
      const at::Tensor both =
          e.gate_up.narrow(0, expert * 2 * spec.width, 2 * spec.width).matmul(e.x[t]);
      const at::Tensor gate = both.narrow(0, 0, spec.width);
      const at::Tensor activated =
          gate * at::sigmoid(gate) * both.narrow(0, spec.width, spec.width);
      sum = sum + weights[j] * e.down.narrow(0, expert * kHidden, kHidden).matmul(activated);
    }
    rows.push_back(sum);
  }
  e.y = at::stack(rows);
  return e;
}

void ExpectClose(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5)) << what;
}

constexpr MoeSpec kSpecs[] = {
    {.experts = 5, .top_k = 2, .width = 7, .renormalize = true},
    {.experts = 4, .top_k = 1, .width = 16, .renormalize = false},
    {.experts = 3, .top_k = 3, .width = 9, .renormalize = false},
    {.experts = 40, .top_k = 2, .width = 8, .renormalize = true},  // most without a token
    {.experts = 5,
     .top_k = 2,
     .width = 7,
     .kind = ExpertKind::kClamped,
     .gate_alpha = 1.3,
     .gate_limit = 0.5,
     .renormalize = true},
    {.experts = 40, .top_k = 3, .width = 16, .kind = ExpertKind::kClamped, .renormalize = true},
};

TEST(Moe, EqualsItsDefinitionWithAllGradients) {
  const auto alone = parallel::MakeSingleGroup("alone");
  for (const MoeSpec& spec : kSpecs) {
    Moe moe(spec);
    at::Tensor x = Draw(9, {kTokens, kHidden}).requires_grad_();
    const Exact exact = FromItsDefinition(moe, x);
    const at::Tensor dy = Draw(10, {kTokens, kHidden});
    (exact.y * dy).sum().backward();
    RouterLoad load = RouterLoad::Zero(spec, at::kCPU);
    const at::Tensor y = moe.ffn.Forward({alone.get(), false}, x, {}, load);
    (y * dy).sum().backward();
    ExpectClose(y, exact.y, "y");
    ExpectClose(x.grad(), exact.x.grad(), "dx");
    ExpectClose(moe.router.gradient, exact.router.grad(), "drouter");
    ExpectClose(moe.gate_up.gradient, exact.gate_up.grad(), "dgate_up");
    ExpectClose(moe.down.gradient, exact.down.grad(), "ddown");
    if (spec.kind == ExpertKind::kClamped) {
      ExpectClose(moe.router_bias.gradient, exact.router_bias.grad(), "drouter_bias");
      ExpectClose(moe.gate_up_bias.gradient, exact.gate_up_bias.grad(), "dgate_up_bias");
      ExpectClose(moe.down_bias.gradient, exact.down_bias.grad(), "ddown_bias");
    }
    EXPECT_EQ(load.sums.narrow(0, 0, spec.experts).sum().item<float>(),
              static_cast<float>(kTokens * spec.top_k));
    EXPECT_FALSE(moe.gate_up.value.grad().defined());
    // Gradients are added to, and a step that is run again gives the same bits.
    const at::Tensor once = moe.gate_up.gradient.clone();
    Moe again(spec);
    RouterLoad other = RouterLoad::Zero(spec, at::kCPU);
    const at::Tensor x2 = x.detach().clone().requires_grad_();
    for (int i = 0; i < 2; ++i)
      (again.ffn.Forward({alone.get(), false}, x2, {}, other) * dy).sum().backward();
    EXPECT_TRUE(at::allclose(again.gate_up.gradient, once * 2, 1e-6, 1e-7));
    Moe third(spec);
    const at::Tensor x3 = x.detach().clone().requires_grad_();
    (third.ffn.Forward({alone.get(), false}, x3, {}, other) * dy).sum().backward();
    EXPECT_TRUE(at::equal(third.gate_up.gradient, once));
    EXPECT_TRUE(at::equal(x3.grad(), x.grad()));
  }
}

TEST(Moe, GenerationComputesTheSameRowsWhateverStandsBesideThem) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const MoeSpec& spec : kSpecs) {
      const Moe moe(spec, dtype);
      const at::Tensor x = Draw(11, {kTokens, kHidden}).to(dtype);
      at::Tensor all = at::empty_like(x);
      moe.ffn.Into(x, all, Arithmetic::kGeneration);
      if (dtype == at::kFloat) ExpectClose(all, FromItsDefinition(moe, x).y.detach(), "y");
      for (int64_t row = 0; row < kTokens; ++row) {
        at::Tensor one = at::empty({1, kHidden}, x.options());
        moe.ffn.Into(x.narrow(0, row, 1), one, Arithmetic::kGeneration);
        EXPECT_TRUE(at::equal(one[0], all[row])) << "row " << row;
      }
    }
  }
}

// Without a wait: on a pretend GPU, in bf16, whose host does not know what rows an expert has.
TEST(Moe, ADeviceThatSortsItselfComputesTheSame) {
  if (!keel::testing::OnPretendGpus()) GTEST_SKIP() << "of a pretend GPU";
  const at::Device device = keel::testing::LoneDevice();
  const auto waits = reinterpret_cast<int64_t (*)()>(dlsym(RTLD_DEFAULT, "keel_pretend_gpu_waits"));
  const auto alone = parallel::MakeSingleGroup("alone");
  for (const MoeSpec& spec : {MoeSpec{.experts = 5, .top_k = 2, .width = 8, .renormalize = true},
                              MoeSpec{.experts = 3, .top_k = 3, .width = 24, .renormalize = false},
                              MoeSpec{.experts = 40, .top_k = 2, .width = 16, .renormalize = true},
                              MoeSpec{.experts = 6,
                              .top_k = 2,
                              .width = 16,
                              .kind = ExpertKind::kClamped,
                              .gate_limit = 0.5,
                              .renormalize = true}}) {
    Moe here(spec, at::kBFloat16), there(spec, at::kBFloat16, device);
    at::Tensor x = Draw(9, {kTokens, kHidden}).to(at::kBFloat16).requires_grad_();
    at::Tensor x_there = x.detach().to(device).requires_grad_();
    const at::Tensor dy = Draw(10, {kTokens, kHidden}).to(at::kBFloat16);
    const at::Tensor dy_there = dy.to(device);
    const auto run = [&](const Moe& moe, const at::Tensor& in, const at::Tensor& dout) {
      RouterLoad load = RouterLoad::Zero(spec, in.device());
      const at::Tensor y = moe.ffn.Forward({alone.get(), false}, in, {}, load);
      y.backward(dout);
      return std::pair(y, load.sums);
    };
    const auto [y, sums] = run(here, x, dy);
    const int64_t before = waits();
    const auto [y_there, sums_there] = run(there, x_there, dy_there);
    at::Tensor generated = at::empty({kTokens, kHidden}, dy_there.options());
    at::Tensor one = at::empty({1, kHidden}, dy_there.options());
    {
      const at::NoGradGuard no_grad;
      there.ffn.Into(x_there, generated, Arithmetic::kBatchInvariant);
      there.ffn.Into(x_there.narrow(0, 7, 1), one, Arithmetic::kBatchInvariant);
    }
    EXPECT_EQ(waits(), before);
    // Of the largest, what some roundings to bf16 make.
    const auto expect_close = [](const at::Tensor& found, const at::Tensor& expected,
                                 const char* what) {
      const at::Tensor e = expected.to(at::kDouble);
      EXPECT_LT((found.to(at::kCPU, at::kDouble) - e).abs().max().item<double>(),
                e.abs().max().item<double>() / 64)
          << what;
    };
    EXPECT_TRUE(
        at::equal(sums_there.cpu().narrow(0, 0, spec.experts), sums.narrow(0, 0, spec.experts)))
        << "the choice";
    expect_close(y_there, y, "y");
    expect_close(generated, y, "generated");
    EXPECT_TRUE(at::equal(one[0].cpu(), generated[7].cpu()));
    expect_close(x_there.grad(), x.grad(), "dx");
    expect_close(there.router.gradient, here.router.gradient, "drouter");
    expect_close(there.gate_up.gradient, here.gate_up.gradient, "dgate_up");
    expect_close(there.down.gradient, here.down.gradient, "ddown");
    if (spec.kind == ExpertKind::kClamped) {
      expect_close(there.router_bias.gradient, here.router_bias.gradient, "drouter_bias");
      expect_close(there.gate_up_bias.gradient, here.gate_up_bias.gradient, "dgate_up_bias");
      expect_close(there.down_bias.gradient, here.down_bias.gradient, "ddown_bias");
    }
    // A step that is run again gives the same bits.
    Moe again(spec, at::kBFloat16, device);
    const at::Tensor x_again = x.detach().to(device).requires_grad_();
    run(again, x_again, dy_there);
    EXPECT_TRUE(at::equal(again.gate_up.gradient.cpu(), there.gate_up.gradient.cpu()));
    EXPECT_TRUE(at::equal(x_again.grad().cpu(), x_there.grad().cpu()));
  }
}

}  // namespace
}  // namespace keel::model
