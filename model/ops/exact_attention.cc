#include "model/ops/exact_attention.h"

#include <algorithm>

#include "parallel/tensor/autograd_capture.h"

namespace keel::model {

namespace {

using parallel::Capture;
using parallel::Captured;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Queries, keys and values of one run, fp32: q [n, kv_heads, times, L, d], k and v
// [n, kv_heads, S, d].
struct Operands {
  at::Tensor q, k, v;
  int64_t past = 0;
  double scale = 1;
  const ScoreOptions& options;

  int64_t tokens() const { return q.size(3); }
};

// Queries [begin, end) and the keys [first_key, first_key + keys) that some of them see.
struct QueryBlock {
  int64_t begin, end, first_key, keys;
};

// As many queries at a time as keep a block's scores within 2^23 numbers, from 16 to 128.
std::vector<QueryBlock> BlocksOf(const Operands& x) {
  const int64_t all = x.past + x.tokens();
  const int64_t reach = x.options.window > 0 ? std::min(all, x.options.window + 128) : all;
  const int64_t heads = x.q.size(0) * x.q.size(1) * x.q.size(2);
  const int64_t rows =
      std::clamp<int64_t>((int64_t{1} << 23) / std::max<int64_t>(1, heads * reach), 16, 128);
  std::vector<QueryBlock> blocks;
  for (int64_t begin = 0; begin < x.tokens(); begin += rows) {
    const int64_t end = std::min(x.tokens(), begin + rows);
    const int64_t first =
        x.options.window > 0 ? std::max<int64_t>(0, x.past + begin + 1 - x.options.window) : 0;
    blocks.push_back({begin, end, first, x.past + end - first});
  }
  return blocks;
}

// A block's queries as one matrix for each key/value head, [n, kv_heads, times * rows, d].
at::Tensor Queries(const at::Tensor& q, const QueryBlock& b) {
  const at::Tensor rows = q.narrow(3, b.begin, b.end - b.begin);
  return rows.reshape({q.size(0), q.size(1), q.size(2) * (b.end - b.begin), q.size(4)});
}

struct Weights {
  at::Tensor p;     // [n, kv_heads, times, rows, keys]
  at::Tensor sink;  // [n, kv_heads, times, rows]: what sinks take of them; undefined without any
  at::Tensor tanh;  // of the scores before the softcap; undefined without one
};

Weights WeightsOf(const Operands& x, const QueryBlock& b) {
  Weights w;
  const int64_t rows = b.end - b.begin;
  at::Tensor scores =
      at::matmul(Queries(x.q, b), x.k.narrow(2, b.first_key, b.keys).transpose(2, 3))
          .mul_(x.scale)
          .view({x.q.size(0), x.q.size(1), x.q.size(2), rows, b.keys});
  if (x.options.softcap > 0) {
    w.tanh = scores.div_(x.options.softcap).tanh_();
    scores = w.tanh * x.options.softcap;
  }
  const auto where = at::TensorOptions().dtype(at::kLong).device(scores.device());
  const at::Tensor query =
      at::arange(x.past + b.begin, x.past + b.end, where).unsqueeze(1);  // [rows, 1]
  const at::Tensor key = at::arange(b.first_key, b.first_key + b.keys, where).unsqueeze(0);
  at::Tensor hidden = key.gt(query);
  if (x.options.window > 0) hidden.logical_or_(key.le(query - x.options.window));
  scores.masked_fill_(hidden, -INFINITY);
  if (x.options.sinks == nullptr) {
    w.p = at::softmax(scores, -1);
    return w;
  }
  const at::Tensor sinks = x.options.sinks->value.detach().to(at::kFloat);
  const at::Tensor column =
      sinks.view({1, x.q.size(1), x.q.size(2), 1, 1}).expand({x.q.size(0), -1, -1, rows, -1});
  const at::Tensor all = at::softmax(at::cat({scores, column}, -1), -1);
  w.p = all.narrow(-1, 0, b.keys);
  w.sink = all.select(-1, b.keys);
  return w;
}

at::Tensor AsMatrices(const at::Tensor& x) {  // [n, kv_heads, times * rows, keys]
  return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3), x.size(4)});
}

// [n, kv_heads, times, L, d]
at::Tensor Attend(const Operands& x) {
  at::Tensor out = at::empty(x.q.sizes(), x.q.options());
  for (const QueryBlock& b : BlocksOf(x)) {
    const at::Tensor p = AsMatrices(WeightsOf(x, b).p);
    out.narrow(3, b.begin, b.end - b.begin)
        .copy_(at::matmul(p, x.v.narrow(2, b.first_key, b.keys))
                   .view({x.q.size(0), x.q.size(1), x.q.size(2), b.end - b.begin, x.q.size(4)}));
  }
  return out;
}

struct Gradients {
  at::Tensor dq, dk, dv;
};

Gradients Differentiate(const Operands& x, const at::Tensor& dout) {
  Gradients g{at::empty(x.q.sizes(), x.q.options()), at::zeros(x.k.sizes(), x.k.options()),
              at::zeros(x.v.sizes(), x.v.options())};
  for (const QueryBlock& b : BlocksOf(x)) {
    const Weights w = WeightsOf(x, b);
    const at::Tensor p = AsMatrices(w.p);
    const at::Tensor d = Queries(dout, b);
    const at::Tensor k = x.k.narrow(2, b.first_key, b.keys);
    g.dv.narrow(2, b.first_key, b.keys).add_(at::matmul(p.transpose(2, 3), d));
    const at::Tensor dp = at::matmul(d, x.v.narrow(2, b.first_key, b.keys).transpose(2, 3));
    const at::Tensor of_queries = (dp * p).sum(-1, true);
    if (w.sink.defined())
      x.options.sinks->gradient.sub_(
          (of_queries.view(w.sink.sizes()) * w.sink).sum(at::IntArrayRef{0, 3}).view({-1}));
    at::Tensor ds = p * (dp - of_queries);
    if (w.tanh.defined()) ds.mul_(1 - AsMatrices(w.tanh).square());
    ds.mul_(x.scale);
    g.dq.narrow(3, b.begin, b.end - b.begin)
        .copy_(at::matmul(ds, k).view(
            {x.q.size(0), x.q.size(1), x.q.size(2), b.end - b.begin, x.q.size(4)}));
    g.dk.narrow(2, b.first_key, b.keys).add_(at::matmul(ds.transpose(2, 3), Queries(x.q, b)));
  }
  return g;
}

// [n, heads, L, d] -> [n, kv_heads, times, L, d], fp32
at::Tensor Grouped(const at::Tensor& heads, const AttentionShape& shape) {
  const at::Tensor x = heads.to(at::kFloat);
  return x.reshape({x.size(0), shape.kv_heads, shape.heads / shape.kv_heads, x.size(2), x.size(3)});
}

Operands OperandsOf(const at::Tensor& qkv, const AttentionShape& shape, const AttentionRun& run,
                    const ScoreOptions& options) {
  const int64_t d = shape.head_dim;
  const auto wide = [&](int64_t first) {
    return HeadsOf(qkv, run, first, shape.kv_heads, d).to(at::kFloat);
  };
  return {Grouped(HeadsOf(qkv, run, 0, shape.heads, d), shape),
          wide(shape.heads),
          wide(shape.heads + shape.kv_heads),
          0,
          options.ScaleOf(shape),
          options};
}

struct ExactFunction : Function<ExactFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const std::vector<AttentionRun>& runs,
                            const ScoreOptions& options) {
    const int64_t d = shape.head_dim;
    at::Tensor out = at::empty({qkv.size(0), shape.heads * d}, qkv.options());
    for (const AttentionRun& run : runs) {
      at::Tensor heads = HeadsOf(out, run, 0, shape.heads, d);
      heads.copy_(Attend(OperandsOf(qkv, shape, run, options)).view(heads.sizes()));
    }
    context->save_for_backward({qkv});
    Capture(context, "shape", shape);
    Capture(context, "runs", runs);
    Capture(context, "options", options);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor qkv = context->get_saved_variables()[0];
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const auto& options = Captured<ScoreOptions>(context, "options");
    const int64_t d = shape.head_dim;
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dqkv = at::empty_like(qkv);
    for (const AttentionRun& run : Captured<std::vector<AttentionRun>>(context, "runs")) {
      const Gradients g = Differentiate(OperandsOf(qkv, shape, run, options),
                                        Grouped(HeadsOf(dout, run, 0, shape.heads, d), shape));
      at::Tensor dq = HeadsOf(dqkv, run, 0, shape.heads, d);
      dq.copy_(g.dq.view(dq.sizes()));
      HeadsOf(dqkv, run, shape.heads, shape.kv_heads, d).copy_(g.dk);
      HeadsOf(dqkv, run, shape.heads + shape.kv_heads, shape.kv_heads, d).copy_(g.dv);
    }
    return {dqkv, {}, {}, {}};
  }
};

}  // namespace

at::Tensor ExactAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t past,
                       const ScoreOptions& options, const AttentionShape& shape) {
  return Attend({Grouped(q, shape), k.to(at::kFloat), v.to(at::kFloat), past,
                 options.ScaleOf(shape), options})
      .view(q.sizes());
}

at::Tensor ExactPackedAttention(const at::Tensor& qkv, const AttentionShape& shape,
                                const std::vector<AttentionRun>& runs,
                                const ScoreOptions& options) {
  return ExactFunction::apply(qkv, shape, runs, options);
}

}  // namespace keel::model
