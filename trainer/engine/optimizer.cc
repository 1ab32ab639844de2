#include "trainer/engine/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "common/kernels/cpu_kernels.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/host_kernels.h"

namespace keel::trainer {

using parallel::GradBuffer;
using parallel::OwnedSlice;
using parallel::Parameter;

namespace {

constexpr int64_t kGrain = 1 << 15;

// Each rank of these has rows of its own (ZeRO-1).
constexpr parallel::AxisSet kDivided = {parallel::Axis::kDp};

// The part of the owned values that holds elements [offset, offset + n).
at::Tensor ValuesAt(const GradBuffer& buffer, int64_t offset, int64_t n) {
  for (const auto& piece : buffer.owned_values()) {
    if (offset >= piece.offset && offset + n <= piece.offset + piece.values.numel()) {
      return piece.values.narrow(0, offset - piece.offset, n);
    }
  }
  TORCH_CHECK(false, "owned slice at ", offset, " lies in no bucket");
}

int64_t Elements(const GradBuffer& buffer, const OwnedSlice& slice) {
  return (slice.row_end - slice.row_begin) *
         buffer.parameters()[static_cast<size_t>(slice.parameter)]->row_size();
}

}  // namespace

DistributedAdamW::DistributedAdamW(GradBuffer& buffer, const AdamWOptions& options)
    : buffer_(buffer), options_(options) {
  const at::TensorOptions fp32 = buffer.owned_gradients().options();
  exp_avg_ = at::zeros({buffer.owned_elements()}, fp32);
  exp_avg_sq_ = at::zeros({buffer.owned_elements()}, fp32);
  if (!buffer.owned_values().empty() &&
      buffer.owned_values()[0].values.scalar_type() != at::kFloat) {
    masters_ = at::zeros({buffer.owned_elements()}, fp32);
  }
  ResetMasters();
}

void DistributedAdamW::ResetMasters() {
  if (!has_masters()) return;
  for (const auto& piece : buffer_.owned_values()) {
    at::Tensor master = masters_.narrow(0, piece.offset, piece.values.numel());
    Announce(master);
    master.copy_(piece.values);
  }
}

std::vector<at::Tensor> DistributedAdamW::flat_state() const {
  if (!has_masters()) return {exp_avg_, exp_avg_sq_};
  return {masters_, exp_avg_, exp_avg_sq_};
}

at::Tensor DistributedAdamW::LocalSquaredNorm(const parallel::Seat& seat) const {
  // Fixed pieces, summed in order: the result does not depend on the number of threads.
  double sum = 0;
  std::vector<at::Tensor> on_device;
  const at::Tensor gradients = buffer_.owned_gradients();
  const auto kernels = parallel::KernelsFor(gradients);
  for (const OwnedSlice& slice : buffer_.owned()) {
    const Parameter& p = *buffer_.parameters()[static_cast<size_t>(slice.parameter)];
    if (CopyNumber(p, seat, kDivided) != 0) continue;
    const int64_t n = Elements(buffer_, slice);
    if (kernels) {
      const at::Tensor partial =
          at::empty({gpu::SumPieces(n)}, gradients.options().dtype(at::kDouble));
      kernels->table.sum_of_squares(
          {n, gradients.const_data_ptr<float>() + slice.offset, partial.data_ptr<double>()},
          kernels->stream);
      on_device.push_back(partial);
      continue;
    }
    if (!parallel::ByHostKernels(gradients)) {
      on_device.push_back(
          gradients.narrow(0, slice.offset, n).to(at::kDouble).square().sum(0, true));
      continue;
    }
    const float* data = gradients.data_ptr<float>() + slice.offset;
    const int64_t pieces = (n + kGrain - 1) / kGrain;
    std::vector<double> partial(static_cast<size_t>(pieces));
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        partial[static_cast<size_t>(i)] =
            kernels::SumOfSquares(data + i * kGrain, std::min(kGrain, n - i * kGrain));
      }
    });
    for (double value : partial) sum += value;
  }
  const auto options = gradients.options().dtype(at::kDouble);
  return on_device.empty() ? at::full({1}, sum, options) : at::cat(on_device).sum(0, true);
}

void DistributedAdamW::Step(double lr, double gradient_scale, int64_t t) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradients = buffer_.owned_gradients();
  for (const OwnedSlice& slice : buffer_.owned()) {
    const Parameter& p = *buffer_.parameters()[static_cast<size_t>(slice.parameter)];
    const int64_t n = Elements(buffer_, slice);
    const kernels::AdamWScalars scalars({.lr = lr,
                                         .beta1 = options_.beta1,
                                         .beta2 = options_.beta2,
                                         .eps = options_.eps,
                                         .weight_decay = p.decays() ? options_.weight_decay : 0,
                                         .t = t,
                                         .gradient_scale = gradient_scale});
    const at::Tensor values = ValuesAt(buffer_, slice.offset, n);
    at::Tensor m = exp_avg_.narrow(0, slice.offset, n);
    at::Tensor v = exp_avg_sq_.narrow(0, slice.offset, n);
    at::Tensor master = has_masters() ? masters_.narrow(0, slice.offset, n) : values;
    const at::Tensor gradient = gradients.narrow(0, slice.offset, n);
    for (const at::Tensor& written : {master, m, v}) Announce(written);
    if (has_masters()) Announce(values);
    if (const auto kernels = parallel::KernelsFor(gradient)) {
      gpu::AdamW step;
      step.n = n;
      step.beta1_rest = scalars.beta1_rest;
      step.beta2 = scalars.beta2;
      step.beta2_rest = scalars.beta2_rest;
      step.eps = scalars.eps;
      step.kept = scalars.kept;
      step.step_size = scalars.step_size;
      step.bias_correction2_sqrt = scalars.bias_correction2_sqrt;
      step.gradient_scale = scalars.gradient_scale;
      step.gradient = gradient.const_data_ptr<float>();
      step.master = master.data_ptr<float>();
      step.exp_avg = m.data_ptr<float>();
      step.exp_avg_sq = v.data_ptr<float>();
      if (has_masters()) step.weight = static_cast<uint16_t*>(values.data_ptr());
      kernels->table.adamw(step, kernels->stream);
      continue;
    }
    if (parallel::ByHostKernels(gradient)) {
      auto* weights =
          has_masters() ? reinterpret_cast<uint16_t*>(values.data_ptr<at::BFloat16>()) : nullptr;
      at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
        kernels::AdamW(scalars, end - begin, gradient.data_ptr<float>() + begin,
                       master.data_ptr<float>() + begin, m.data_ptr<float>() + begin,
                       v.data_ptr<float>() + begin, weights == nullptr ? nullptr : weights + begin);
      });
      continue;
    }
    const at::Tensor g = gradient * gradient_scale;
    m.lerp_(g, scalars.beta1_rest);
    v.mul_(scalars.beta2).addcmul_(g, g, scalars.beta2_rest);
    master.mul_(scalars.kept);
    master.addcdiv_(m, v.sqrt().div_(scalars.bias_correction2_sqrt).add_(scalars.eps),
                    -scalars.step_size);
    if (has_masters()) at::Tensor(values).copy_(master);
  }
  buffer_.weights().Publish();
}

ShardTable DistributedAdamW::Table(const parallel::Seat& seat, bool with_tied_copies,
                                   const parallel::HostTensor& host) const {
  ShardTable table;
  struct State {
    const char* kind;
    at::Tensor values;
  };
  const auto on_host = [&](const at::Tensor& tensor) { return host ? host(tensor) : tensor; };
  std::vector<State> states;
  if (has_masters()) states.push_back({"master", on_host(masters_)});
  states.push_back({"exp_avg", on_host(exp_avg_)});
  states.push_back({"exp_avg_sq", on_host(exp_avg_sq_)});
  for (const OwnedSlice& slice : buffer_.owned()) {
    const Parameter& p = *buffer_.parameters()[static_cast<size_t>(slice.parameter)];
    if (p.replica && !with_tied_copies) continue;
    for (const State& state : states) {
      for (const parallel::ParameterPiece& piece : p.pieces) {
        const int64_t begin = std::max(slice.row_begin, piece.row_begin);
        const int64_t end = std::min(slice.row_end, piece.row_begin + p.RowsOf(piece));
        if (begin >= end) continue;
        Box box = piece.box;
        box.offset[p.RowDim(piece)] += begin - piece.row_begin;
        box.size[p.RowDim(piece)] = end - begin;
        StridedView view;
        const int64_t at = slice.offset + (begin - slice.row_begin) * p.row_size();
        view.data = reinterpret_cast<std::byte*>(state.values.data_ptr<float>() + at);
        view.strides = p.StridesOf(piece, box.size);
        ThrowIfError(table.Add(
            {std::string("optimizer.") + state.kind + "." + piece.name, DType::kF32, piece.shape},
            box, view, CopyNumber(p, seat, kDivided)));
      }
    }
  }
  return table;
}

}  // namespace keel::trainer
