#include "model/ops/delta_chunks.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace keel::model {

namespace {

constexpr int64_t kChunk = 64;  // tokens
constexpr double kLengthEps = 1e-6;

at::Tensor Taps(const at::Tensor& weight, int64_t tap) {
  return weight.select(2, tap).select(1, 0).to(at::kFloat);
}

// Of length one.
at::Tensor Normalized(const at::Tensor& x) {
  return x * at::rsqrt(x.square().sum(-1, /*keepdim=*/true) + kLengthEps);
}

// [n, value_heads, L, d] fp32 of heads that stand beside each other in the channels from `first`
// on.
at::Tensor Heads(const at::Tensor& qkv, int64_t first, int64_t heads, int64_t d) {
  return qkv.narrow(2, first, heads * d)
      .reshape({qkv.size(0), qkv.size(1), heads, d})
      .transpose(1, 2)
      .to(at::kFloat);
}

struct Inputs {
  at::Tensor q, k, v;  // [n, value_heads, L, d] fp32, normalised
  at::Tensor g, beta;  // [n, value_heads, L]
};

Inputs InputsOf(const at::Tensor& qkv, const DeltaGates& gates, const DeltaShape& shape) {
  const int64_t each = shape.per_key();
  const auto keys = [&](int64_t first) {
    const at::Tensor heads = Normalized(Heads(qkv, first, shape.key_heads, shape.key_dim));
    return heads.unsqueeze(2).expand({-1, -1, each, -1, -1}).flatten(1, 2);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(shape.key_dim));
  return {keys(0) * scale, keys(shape.keys()),
          Heads(qkv, 2 * shape.keys(), shape.value_heads, shape.value_dim),
          gates.log_decay.transpose(1, 2), gates.beta.transpose(1, 2)};
}

// Of one token each.
Recurred OneToken(const Inputs& in, const at::Tensor& before) {
  const at::Tensor k = in.k.transpose(-1, -2);  // [n, heads, key_dim, 1]
  const at::Tensor kept = before * in.g.exp().unsqueeze(-1);
  const at::Tensor update = (in.v - in.k.matmul(kept)) * in.beta.unsqueeze(-1);
  const at::Tensor state = kept + k * update;
  return {in.q.matmul(state), state};
}

// With G(i, j) the decay from token j of a chunk to token i, a chunk's updates u solve
// u_i + beta_i sum over j < i of G(i, j) (k_i k_j) u_j = beta_i (v_i - G(i, before) k_i S), a
// triangular system; results and the next state are then products.
Recurred InChunks(const Inputs& in, at::Tensor state) {
  const auto chunks = [](const at::Tensor& x) { return x.split(kChunk, 2); };
  const std::vector<at::Tensor> q = chunks(in.q), k = chunks(in.k), v = chunks(in.v);
  const std::vector<at::Tensor> g = chunks(in.g), beta = chunks(in.beta);
  const at::Tensor ones = at::ones({kChunk, kChunk}, in.q.options());
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < q.size(); ++i) {
    const int64_t count = q[i].size(2);
    const at::Tensor square = ones.narrow(0, 0, count).narrow(1, 0, count);
    // A product, since PyTorch's cumsum on a GPU is not deterministic.
    const at::Tensor sums = square.tril().matmul(g[i].unsqueeze(-1));  // [n, heads, count, 1]
    const at::Tensor since = sums.exp();                               // G(i, before)
    const at::Tensor later = square.triu(1).to(at::kBool);
    const at::Tensor decays = (sums - sums.transpose(-1, -2)).masked_fill(later, -INFINITY).exp();
    const at::Tensor keys = k[i].transpose(-1, -2);
    const at::Tensor share = beta[i].unsqueeze(-1);
    const at::Tensor system = (k[i] * share).matmul(keys) * decays;  // its diagonal counts as ones
    const at::Tensor update = at::linalg_solve_triangular(
        system, share * (v[i] - since * k[i].matmul(state)), /*upper=*/false, /*left=*/true,
        /*unitriangular=*/true);
    out.push_back(since * q[i].matmul(state) + (q[i].matmul(keys) * decays).matmul(update));
    const at::Tensor whole = sums.narrow(2, count - 1, 1);  // [n, heads, 1, 1]
    const at::Tensor until_end = (whole - sums).exp();
    state = state * whole.exp() + (k[i] * until_end).transpose(-1, -2).matmul(update);
  }
  return {at::cat(out, 2), state};
}

}  // namespace

at::Tensor ConvolvedByPositions(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& positions) {
  const int64_t taps = weight.size(2);
  const at::Tensor values = x.to(at::kFloat);
  const at::Tensor place = positions.unsqueeze(1);
  at::Tensor sum = values * Taps(weight, taps - 1);
  for (int64_t back = 1; back < std::min(taps, x.size(0)); ++back) {
    const at::Tensor earlier = at::cat(
        {at::zeros({back, x.size(1)}, values.options()), values.narrow(0, 0, x.size(0) - back)});
    sum = sum + at::where(place.ge(back), earlier, 0.0) * Taps(weight, taps - 1 - back);
  }
  return at::silu(sum).to(x.scalar_type());
}

at::Tensor ConvolvedBehind(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t taps = weight.size(2);
  const int64_t length = x.size(1) - taps + 1;
  at::Tensor sum;
  // In the order in which ConvolvedByPositions adds.
  for (int64_t tap = taps - 1; tap >= 0; --tap) {
    const at::Tensor term = x.narrow(1, tap, length).to(at::kFloat) * Taps(weight, tap);
    sum = sum.defined() ? sum + term : term;
  }
  return at::silu(sum).to(x.scalar_type());
}

DeltaGates GatesOf(const DeltaInputs& in, const at::Tensor& a_log, const at::Tensor& dt_bias) {
  const at::Tensor rate = at::softplus(in.a.to(at::kFloat) + dt_bias.to(at::kFloat));
  return {-a_log.to(at::kFloat).exp() * rate, at::sigmoid(in.b).to(at::kFloat)};
}

Recurred Recur(const at::Tensor& qkv, const DeltaGates& gates, const DeltaShape& shape,
               const at::Tensor& state) {
  if (qkv.size(1) == 0) return {qkv.new_empty({qkv.size(0), 0, shape.values()}), state};
  const Inputs in = InputsOf(qkv, gates, shape);
  const Recurred done = qkv.size(1) == 1 ? OneToken(in, state) : InChunks(in, state);
  return {done.out.transpose(1, 2)
              .reshape({qkv.size(0), qkv.size(1), shape.values()})
              .to(qkv.scalar_type()),
          done.state};
}

}  // namespace keel::model
