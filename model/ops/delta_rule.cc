#include "model/ops/delta_rule.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/kernels/delta_rule.h"
#include "model/ops/composed.h"
#include "model/ops/delta_chunks.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"
#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

using parallel::ByHostKernels;
using parallel::Capture;
using parallel::Captured;
using parallel::HostData;
using parallel::Parameter;
using parallel::WithHostType;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The host's numbers: one by one, since ATen's vectorised operations give the last elements of an
// array other bits than the same ones in its middle.
float SoftPlus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
float WrittenShare(float x) { return 1.0f / (1.0f + std::exp(-x)); }

DeltaGates HostGates(const DeltaInputs& in, const at::Tensor& a_log, const at::Tensor& dt_bias) {
  const at::Tensor a = in.a.to(at::kFloat).contiguous();
  at::Tensor beta = in.b.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  at::Tensor log_decay = at::empty_like(a);
  const int64_t heads = a.size(1);
  const at::Tensor logs = a_log.to(at::kFloat), biases = dt_bias.to(at::kFloat);
  for (int64_t i = 0; i < a.numel(); ++i) {
    const int64_t head = i % heads;
    log_decay.data_ptr<float>()[i] =
        -std::exp(logs.const_data_ptr<float>()[head]) *
        SoftPlus(a.const_data_ptr<float>()[i] + biases.const_data_ptr<float>()[head]);
    float& b = beta.data_ptr<float>()[i];
    b = WrittenShare(b);
  }
  // A bf16 model's are bf16 numbers.
  return {log_decay, beta.to(in.b.scalar_type()).to(at::kFloat)};
}

// [taps, channels] fp32, of channels [first, first + count).
at::Tensor HostTaps(const at::Tensor& weight, int64_t first, int64_t count) {
  return weight.narrow(0, first, count).select(1, 0).t().to(at::kFloat).contiguous();
}

// x [L, channels] with `before` in front, or zeros.
at::Tensor Behind(const at::Tensor& x, int64_t taps, const at::Tensor& before = {}) {
  at::Tensor rows = at::empty({taps - 1 + x.size(0), x.size(1)}, x.options());
  const at::Tensor front = rows.narrow(0, 0, taps - 1);
  before.defined() ? front.copy_(before) : front.zero_();
  rows.narrow(0, taps - 1, x.size(0)).copy_(x);
  return rows;
}

// rows [taps - 1 + L, channels] -> out [L, channels].
void HostConvolve(const at::Tensor& rows, const at::Tensor& taps, const at::Tensor& out) {
  const int64_t channels = rows.size(1);
  WithHostType(rows, [&]<typename T>(T) {
    at::parallel_for(
        0, out.size(0), parallel::RowGrain(8 * channels), [&](int64_t begin, int64_t end) {
          kernels::ConvolveSilu(HostData<T>(rows) + begin * channels, channels, end - begin,
                                channels, taps.const_data_ptr<float>(), taps.size(0),
                                HostData<T>(out) + begin * channels, channels);
        });
  });
}

struct ConvolutionFunction : Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& gradient, const Packing& packing) {
    context->save_for_backward({x, weight});
    context->saved_data["gradient"] = gradient;
    Capture(context, "packing", packing);
    at::Tensor out = at::empty(x.sizes(), x.options());
    const at::Tensor taps = HostTaps(weight, 0, weight.size(0));
    for (size_t i = 0; i < packing.sequences(); ++i) {
      const int64_t first = packing.boundaries[i], count = packing.tokens(i);
      HostConvolve(Behind(x.narrow(0, first, count), weight.size(2)), taps,
                   out.narrow(0, first, count));
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor gradient = context->saved_data["gradient"].toTensor();
    const auto& packing = Captured<Packing>(context, "packing");
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dx = at::empty(x.sizes(), dout.options());
    const int64_t channels = x.size(1), taps = weight.size(2);
    for (size_t i = 0; i < packing.sequences(); ++i) {
      const int64_t first = packing.boundaries[i], count = packing.tokens(i);
      const at::Tensor rows = Behind(x.narrow(0, first, count), taps);
      constexpr int64_t kBlock = 256;  // channels
      WithHostType(x, [&]<typename T>(T) {
        at::parallel_for(0, (channels + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
          for (int64_t block = begin; block < end; ++block) {
            const int64_t from = block * kBlock, width = std::min(kBlock, channels - from);
            const at::Tensor part = HostTaps(weight, from, width);
            const at::Tensor sums = at::zeros({taps, width}, at::kFloat);
            std::vector<float> scratch(static_cast<size_t>((count + taps - 1) * width));
            kernels::ConvolveSiluGradient(HostData<T>(rows) + from, channels,
                                          HostData<T>(dout) + first * channels + from, channels,
                                          count, width, part.const_data_ptr<float>(), taps,
                                          HostData<T>(dx) + first * channels + from, channels,
                                          sums.data_ptr<float>(), scratch.data());
            gradient.narrow(0, from, width).select(1, 0).add_(sums.t());
          }
        });
      });
    }
    return {dx, {}, {}, {}};
  }
};

// The part of a packed batch, or of one of generation, that is of one text and one key head.
template <typename T>
kernels::DeltaText<T> TextOf(const at::Tensor& qkv, const DeltaGates& gates,
                             const DeltaShape& shape, int64_t head, int64_t first, int64_t count) {
  const T* const token = HostData<T>(qkv) + first * shape.channels();
  const int64_t of_values = head * shape.per_key();
  const int64_t gate = first * shape.value_heads + of_values;
  return {token + head * shape.key_dim,
          token + shape.keys() + head * shape.key_dim,
          token + 2 * shape.keys() + of_values * shape.value_dim,
          shape.channels(),
          gates.log_decay.const_data_ptr<float>() + gate,
          gates.beta.const_data_ptr<float>() + gate,
          shape.value_heads,
          count,
          shape.key_dim,
          shape.per_key(),
          shape.value_dim};
}

// Tokens of a text, and the state [value_heads, key_dim, value_dim] before and after them.
struct HostTokens {
  int64_t first = 0;
  int64_t count = 0;
  float* state = nullptr;
};
void HostRecur(const at::Tensor& qkv, const DeltaGates& gates, const DeltaShape& shape,
               const std::vector<HostTokens>& texts, const at::Tensor& out) {
  WithHostType(qkv, [&]<typename T>(T) {
    const int64_t parts = std::ssize(texts) * shape.key_heads;
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(static_cast<size_t>(kernels::DeltaScratch(shape.key_dim)));
      for (int64_t part = begin; part < end; ++part) {
        const HostTokens& text = texts[static_cast<size_t>(part / shape.key_heads)];
        const int64_t head = part % shape.key_heads;
        const int64_t heads = head * shape.per_key();
        kernels::DeltaRule(TextOf<T>(qkv, gates, shape, head, text.first, text.count),
                           text.state + heads * shape.key_dim * shape.value_dim,
                           HostData<T>(out) + text.first * shape.values() + heads * shape.value_dim,
                           shape.values(), scratch.data());
      }
    });
  });
}

struct DeltaRuleFunction : Function<DeltaRuleFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& a,
                            const at::Tensor& b, const at::Tensor& a_log, const at::Tensor& dt_bias,
                            const at::Tensor& a_log_gradient, const at::Tensor& dt_bias_gradient,
                            const DeltaShape& shape, const Packing& packing) {
    const DeltaGates gates = HostGates({qkv, a, b}, a_log, dt_bias);
    context->save_for_backward({qkv, a, b, a_log, dt_bias, gates.log_decay, gates.beta});
    context->saved_data["a_log_gradient"] = a_log_gradient;
    context->saved_data["dt_bias_gradient"] = dt_bias_gradient;
    Capture(context, "shape", shape);
    Capture(context, "packing", packing);
    at::Tensor out = at::empty({qkv.size(0), shape.values()}, qkv.options());
    const at::Tensor states =
        at::zeros({static_cast<int64_t>(packing.sequences()), shape.state_size()}, at::kFloat);
    std::vector<HostTokens> texts;
    for (size_t i = 0; i < packing.sequences(); ++i) {
      texts.push_back({packing.boundaries[i], packing.tokens(i),
                       states.data_ptr<float>() + static_cast<int64_t>(i) * shape.state_size()});
    }
    HostRecur(qkv, gates, shape, texts, out);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &a = saved[1], &b = saved[2];
    const DeltaGates gates = {saved[5], saved[6]};
    const auto& shape = Captured<DeltaShape>(context, "shape");
    const auto& packing = Captured<Packing>(context, "packing");
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dqkv = at::empty_like(qkv);
    at::Tensor dlog_decay = at::empty_like(gates.log_decay), dbeta = at::empty_like(gates.beta);
    const auto texts = static_cast<int64_t>(packing.sequences());
    WithHostType(qkv, [&]<typename T>(T) {
      at::parallel_for(0, texts * shape.key_heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch;
        for (int64_t part = begin; part < end; ++part) {
          const auto text = static_cast<size_t>(part / shape.key_heads);
          const int64_t head = part % shape.key_heads, heads = head * shape.per_key();
          const int64_t first = packing.boundaries[text], count = packing.tokens(text);
          scratch.resize(static_cast<size_t>(kernels::DeltaGradientScratch(count, shape.key_dim)));
          T* const token = HostData<T>(dqkv) + first * shape.channels();
          const int64_t gate = first * shape.value_heads + heads;
          kernels::DeltaRuleGradient<T>(
              TextOf<T>(qkv, gates, shape, head, first, count),
              HostData<T>(dout) + first * shape.values() + heads * shape.value_dim, shape.values(),
              {token + head * shape.key_dim, token + shape.keys() + head * shape.key_dim,
               token + 2 * shape.keys() + heads * shape.value_dim,
               dlog_decay.data_ptr<float>() + gate, dbeta.data_ptr<float>() + gate},
              scratch.data());
        }
      });
    });
    // Behind the gates, whose values in between are few.
    const at::Tensor x = a.to(at::kFloat) + saved[4].to(at::kFloat);
    const at::Tensor da = -dlog_decay * saved[3].to(at::kFloat).exp() * at::sigmoid(x);
    context->saved_data["a_log_gradient"].toTensor().add_((dlog_decay * gates.log_decay).sum(0));
    context->saved_data["dt_bias_gradient"].toTensor().add_(da.sum(0));
    const at::Tensor db = dbeta * gates.beta * (1 - gates.beta);
    return {dqkv, da.to(a.scalar_type()), db.to(b.scalar_type()), {}, {}, {}, {}, {}, {}};
  }
};

// [sequences] int64, of all or of those that begin.
at::Tensor SlotsOf(const RecurrentLayer& layer, bool new_ones) {
  std::vector<int64_t> slots;
  for (const DecodeSequence& s : layer.sequences)
    if (!new_ones || s.past == 0) slots.push_back(s.state);
  return at::tensor(slots, at::kLong);
}

// Runs of sequences that have as many tokens in this batch: [first, first + count) of them, whose
// rows begin at `row`.
struct Alike {
  int64_t first = 0;
  int64_t count = 0;
  int64_t row = 0;
  int64_t tokens = 0;  // of each
};
std::vector<Alike> AlikeOf(const std::vector<DecodeSequence>& sequences) {
  std::vector<Alike> runs;
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t tokens = sequences[i].tokens;
    if (runs.empty() || runs.back().tokens != tokens)
      runs.push_back({static_cast<int64_t>(i), 0, row, tokens});
    ++runs.back().count;
    row += tokens;
  }
  return runs;
}

// Of all texts of a packed batch, on a device.
at::Tensor RecurOfTexts(const DeltaInputs& in, const at::Tensor& a_log, const at::Tensor& dt_bias,
                        const DeltaShape& shape, const std::vector<int64_t>& boundaries) {
  const DeltaGates gates = GatesOf(in, a_log, dt_bias);
  const at::Tensor state = at::zeros({1, shape.value_heads, shape.key_dim, shape.value_dim},
                                     in.qkv.options().dtype(at::kFloat));
  std::vector<int64_t> tokens;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i)
    tokens.push_back(boundaries[i + 1] - boundaries[i]);
  const auto texts = [&](const at::Tensor& values) {
    return values.unsqueeze(0).split_with_sizes(tokens, 1);
  };
  const std::vector<at::Tensor> qkv = texts(in.qkv), log_decay = texts(gates.log_decay);
  const std::vector<at::Tensor> beta = texts(gates.beta);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < tokens.size(); ++i)
    out.push_back(Recur(qkv[i], {log_decay[i], beta[i]}, shape, state).out.squeeze(0));
  return at::cat(out);
}

// What a text begins with, on a device.
void Clear(const RecurrentLayer& layer, const at::Tensor& memory) {
  const at::Tensor slots = SlotsOf(layer, true);
  if (slots.numel() > 0) memory.index_fill_(0, parallel::SentTo(memory.device(), slots), 0);
}

}  // namespace

at::Tensor CausalConvolution(const at::Tensor& x, Parameter& weight, const Packing& packing) {
  if (ByHostKernels(x))
    return ConvolutionFunction::apply(x, weight.value, weight.gradient, packing);
  return Composed(
      [positions = packing.positions](const auto& in, const auto& weights) {
        return ConvolvedByPositions(in[0], weights[0], positions);
      },
      {x}, {&weight});
}

at::Tensor GatedDeltaRule(const DeltaInputs& in, const DeltaParameters& parameters,
                          const DeltaShape& shape, const Packing& packing) {
  const Parameter &a_log = *parameters.a_log, &dt_bias = *parameters.dt_bias;
  if (ByHostKernels(in.qkv)) {
    return DeltaRuleFunction::apply(in.qkv, in.a, in.b, a_log.value, dt_bias.value, a_log.gradient,
                                    dt_bias.gradient, shape, packing);
  }
  return Composed(
      [shape, boundaries = packing.boundaries](const auto& inputs, const auto& values) {
        return RecurOfTexts({inputs[0], inputs[1], inputs[2]}, values[0], values[1], shape,
                            boundaries);
      },
      {in.qkv, in.a, in.b}, {parameters.a_log, parameters.dt_bias});
}

at::Tensor CausalConvolution(const at::Tensor& x, const Parameter& weight,
                             const RecurrentLayer& layer) {
  const int64_t taps = weight.value.size(2), channels = x.size(1);
  const at::Tensor& inputs = layer.states.inputs;
  at::Tensor out = at::empty({x.size(0), channels}, x.options());
  if (ByHostKernels(x)) {
    const at::Tensor host_taps = HostTaps(weight.value.detach(), 0, channels);
    int64_t row = 0;
    for (const DecodeSequence& s : layer.sequences) {
      const at::Tensor before = inputs[s.state];
      const at::Tensor rows =
          Behind(x.narrow(0, row, s.tokens), taps, s.past > 0 ? before : at::Tensor());
      HostConvolve(rows, host_taps, out.narrow(0, row, s.tokens));
      before.copy_(rows.narrow(0, s.tokens, taps - 1));
      row += s.tokens;
    }
    return out;
  }
  Clear(layer, inputs);
  const at::Tensor slots = parallel::SentTo(x.device(), SlotsOf(layer, false));
  for (const Alike& run : AlikeOf(layer.sequences)) {
    const at::Tensor mine = slots.narrow(0, run.first, run.count);
    const at::Tensor rows =
        at::cat({inputs.index_select(0, mine),
                 x.narrow(0, run.row, run.count * run.tokens).view({run.count, run.tokens, -1})},
                1);
    out.narrow(0, run.row, run.count * run.tokens)
        .copy_(ConvolvedBehind(rows, weight.value.detach()).view({-1, channels}));
    inputs.index_copy_(0, mine, rows.narrow(1, run.tokens, taps - 1));
  }
  return out;
}

at::Tensor GatedDeltaRule(const DeltaInputs& in, const DeltaParameters& parameters,
                          const DeltaShape& shape, const RecurrentLayer& layer) {
  const at::Tensor a_log = parameters.a_log->value.detach();
  const at::Tensor dt_bias = parameters.dt_bias->value.detach();
  const at::Tensor& states = layer.states.states;
  at::Tensor out = at::empty({in.qkv.size(0), shape.values()}, in.qkv.options());
  if (ByHostKernels(in.qkv)) {
    std::vector<HostTokens> texts;
    int64_t row = 0;
    for (const DecodeSequence& s : layer.sequences) {
      float* const state = states.data_ptr<float>() + s.state * shape.state_size();
      if (s.past == 0) std::fill_n(state, shape.state_size(), 0.0f);
      texts.push_back({row, s.tokens, state});
      row += s.tokens;
    }
    HostRecur(in.qkv, HostGates(in, a_log, dt_bias), shape, texts, out);
    return out;
  }
  Clear(layer, states);
  const at::Tensor slots = parallel::SentTo(states.device(), SlotsOf(layer, false));
  const DeltaGates gates = GatesOf(in, a_log, dt_bias);
  for (const Alike& run : AlikeOf(layer.sequences)) {
    const auto part = [&](const at::Tensor& values) {
      return values.narrow(0, run.row, run.count * run.tokens)
          .reshape({run.count, run.tokens, values.size(1)});
    };
    const at::Tensor mine = slots.narrow(0, run.first, run.count);
    const Recurred done = Recur(part(in.qkv), {part(gates.log_decay), part(gates.beta)}, shape,
                                states.index_select(0, mine));
    out.narrow(0, run.row, run.count * run.tokens).copy_(done.out.view({-1, shape.values()}));
    states.index_copy_(0, mine, done.state);
  }
  return out;
}

}  // namespace keel::model
