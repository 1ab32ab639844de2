#include "model/ops/decode_ops.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/kernels/cpu_decode.h"
#include "common/kernels/cpu_kernels.h"
#include "model/ops/device_ops.h"
#include "model/ops/exact_attention.h"
#include "model/ops/norm_rows.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"
#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

using parallel::HostData;
using parallel::RowGrain;
using parallel::WithHostType;

kernels::NormScalars Scalars(const NormOptions& options) {
  return {static_cast<float>(options.eps), static_cast<float>(options.offset)};
}

// A token's key/value pair moves to its place in the blocks.
template <typename T>
void WriteKeysAndValues(const at::Tensor& qkv, const AttentionShape& shape,
                        const CachedLayer& cache) {
  const auto& [sequences, store, layer] = cache;
  const int64_t d = shape.head_dim;
  const int64_t width = qkv.size(1);
  const int64_t size = store.block_size();
  T* keys = HostData<T>(store.keys(layer));
  T* values = HostData<T>(store.values(layer));
  const T* row = HostData<T>(qkv) + shape.heads * d;
  const size_t group = store.group(layer);
  for (const DecodeSequence& s : sequences) {
    const std::vector<int32_t>& blocks = s.blocks[group];
    for (int64_t t = 0; t < s.tokens; ++t, row += width) {
      const int64_t position = s.past + t;
      const int64_t block = blocks[static_cast<size_t>(position / size)];
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        const int64_t at = ((block * shape.kv_heads + h) * size + position % size) * d;
        std::memcpy(keys + at, row + h * d, static_cast<size_t>(d) * sizeof(T));
        std::memcpy(values + at, row + (shape.kv_heads + h) * d,
                    static_cast<size_t>(d) * sizeof(T));
      }
    }
  }
}

// One key/value head of some neighbouring tokens of a sequence.
struct AttentionTask {
  const DecodeSequence* sequence;
  int64_t row;    // of the first token in qkv
  int64_t first;  // token within the sequence's new ones
  int64_t tokens;
  int64_t head;
};

template <typename T>
void AttendOnHost(const at::Tensor& qkv, const AttentionShape& shape, const CachedLayer& cache,
                  const ScoreOptions& options, at::Tensor& out) {
  const auto& [sequences, store, layer] = cache;
  const int64_t d = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  constexpr int64_t kTokens = 16;  // of a long prompt, so that threads share it
  std::vector<AttentionTask> tasks;
  int64_t row = 0;
  int64_t longest = 0;
  int64_t work = 0;  // of all tasks, in multiplications
  for (const DecodeSequence& s : sequences) {
    longest = std::max(longest, s.past + s.tokens);
    work += s.tokens * (s.past + s.tokens) * shape.heads * d;
    for (int64_t t = 0; t < s.tokens; t += kTokens) {
      for (int64_t h = 0; h < shape.kv_heads; ++h)
        tasks.push_back({&s, row + t, t, std::min(kTokens, s.tokens - t), h});
    }
    row += s.tokens;
  }
  const int64_t size = store.block_size();
  const at::Tensor sinks =
      options.sinks != nullptr ? options.sinks->value.detach().to(at::kFloat) : at::Tensor();
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t grain = std::max<int64_t>(1, count * 65536 / std::max<int64_t>(1, work));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(kernels::AttentionScratch(longest)));
    for (int64_t i = begin; i < end; ++i) {
      const AttentionTask& task = tasks[static_cast<size_t>(i)];
      kernels::PagedHead<T> head;
      head.keys = HostData<T>(store.keys(layer)) + task.head * size * d;
      head.values = HostData<T>(store.values(layer)) + task.head * size * d;
      head.block_stride = shape.kv_heads * size * d;
      head.blocks = task.sequence->blocks[store.group(layer)].data();
      head.block_size = size;
      head.d = d;
      kernels::PagedScores scores;
      scores.scale = static_cast<float>(options.ScaleOf(shape));
      scores.softcap = static_cast<float>(options.softcap);
      scores.window = options.window;
      if (sinks.defined()) scores.sinks = sinks.const_data_ptr<float>() + task.head * group;
      kernels::AttendPaged<T>(
          head, HostData<T>(qkv) + task.row * qkv.size(1) + task.head * group * d, qkv.size(1),
          group, task.tokens, task.sequence->past + task.first, scores,
          HostData<T>(out) + task.row * out.size(1) + task.head * group * d, out.size(1),
          scratch.data());
    }
  });
}

// The first n positions of these blocks, [kv_heads, n, d].
at::Tensor GatherBlocks(const at::Tensor& blocks, const at::Tensor& index, int64_t n) {
  const at::Tensor chosen = blocks.index_select(0, index);  // [blocks, kv_heads, size, d]
  return chosen.transpose(0, 1)
      .reshape({blocks.size(1), index.size(0) * blocks.size(2), blocks.size(3)})
      .narrow(1, 0, n);
}

void AttendOnDevice(const at::Tensor& qkv, const AttentionShape& shape, const CachedLayer& cache,
                    const ScoreOptions& options, at::Tensor& out) {
  const auto& [sequences, store, layer] = cache;
  const int64_t d = shape.head_dim;
  const int64_t size = store.block_size();
  const at::Tensor heads = qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, d});
  int64_t row = 0;
  for (const DecodeSequence& s : sequences) {
    // Only the blocks that the window of the first token reaches; positions are counted from them.
    const int64_t reached =
        options.window > 0 ? std::max<int64_t>(0, s.past - options.window + 1) / size : 0;
    const std::span<const int32_t> blocks =
        std::span(s.blocks[store.group(layer)]).subspan(static_cast<size_t>(reached));
    const int64_t past = s.past - reached * size;
    const at::Tensor index = parallel::SentTo(
        qkv.device(), at::tensor(at::ArrayRef<int32_t>(blocks.data(), blocks.size()), at::kInt));
    const at::Tensor mine = heads.narrow(0, row, s.tokens);
    const at::Tensor place = at::arange(past, past + s.tokens, index.options());
    const at::Tensor block = index.index_select(0, at::floor_divide(place, size)).to(at::kLong);
    const at::Tensor offset = place.remainder(size).to(at::kLong);
    at::Tensor keys = store.keys(layer);
    at::Tensor values = store.values(layer);
    // [blocks, size, kv_heads, d] views, so that (block, offset) picks a token.
    at::Tensor by_token = keys.transpose(1, 2);
    by_token.index_put_({block, offset}, mine.narrow(1, shape.heads, shape.kv_heads));
    by_token = values.transpose(1, 2);
    by_token.index_put_({block, offset},
                        mine.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads));
    const int64_t n = past + s.tokens;
    const at::Tensor q = mine.narrow(1, 0, shape.heads).transpose(0, 1).unsqueeze(0);
    const at::Tensor k = GatherBlocks(keys, index, n).unsqueeze(0);
    const at::Tensor v = GatherBlocks(values, index, n).unsqueeze(0);
    at::Tensor result;
    if (NeedsExact(options, n) || options.sinks != nullptr) {
      result = ExactAttend(q, k, v, past, options, shape);
    } else {
      std::optional<at::Tensor> mask;
      if (past > 0 && s.tokens > 1)
        mask = at::ones({s.tokens, n}, index.options().dtype(at::kBool)).tril(past);
      result =
          at::scaled_dot_product_attention(q, k, v, mask, 0.0, past == 0 && s.tokens > 1,
                                           options.ScaleOf(shape), shape.heads != shape.kv_heads);
    }
    out.narrow(0, row, s.tokens)
        .copy_(result.squeeze(0).transpose(0, 1).reshape({s.tokens, shape.heads * d}));
    row += s.tokens;
  }
}

}  // namespace

void RmsNormInto(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options,
                 at::Tensor& out) {
  const int64_t n = x.size(1);
  if (!parallel::ByHostKernels(x)) {
    NormalizeRows(x, NormRows::Of(x), weight, options, out);
    return;
  }
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, x.size(0), RowGrain(n), [&](int64_t begin, int64_t end) {
      float rstd;
      for (int64_t row = begin; row < end; ++row) {
        kernels::RmsNorm(HostData<T>(x) + row * n, n, HostData<T>(weight), Scalars(options), 1, n,
                         HostData<T>(out) + row * n, n, &rstd);
      }
    });
  });
}

void NormalizeHeadsInPlace(at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& q_weight,
                           const at::Tensor& k_weight, const NormOptions& options) {
  const int64_t d = shape.head_dim;
  const int64_t rows = qkv.size(0);
  if (!parallel::ByHostKernels(qkv)) {
    const NormRows q = {rows, shape.heads, d, qkv.size(1), 0};
    const NormRows k = {rows, shape.kv_heads, d, qkv.size(1), shape.heads * d};
    NormalizeRows(qkv, q, q_weight, options, qkv);
    NormalizeRows(qkv, k, k_weight, options, qkv);
    return;
  }
  WithHostType(qkv, [&]<typename T>(T) {
    at::parallel_for(0, rows, RowGrain(qkv.size(1)), [&](int64_t begin, int64_t end) {
      float rstd;
      for (int64_t row = begin; row < end; ++row) {
        T* at = HostData<T>(qkv) + row * qkv.size(1);
        for (int64_t h = 0; h < shape.heads + shape.kv_heads; ++h, at += d) {
          kernels::RmsNorm(at, d, HostData<T>(h < shape.heads ? q_weight : k_weight),
                           Scalars(options), 1, d, at, d, &rstd);
        }
      }
    });
  });
}

void GatedUnitInto(const at::Tensor& gate_up, Activation activation, at::Tensor& out) {
  const int64_t n = gate_up.size(1) / 2;
  const bool silu = activation == Activation::kSilu;
  if (const auto kernels = parallel::KernelsFor(gate_up)) {
    gpu::GatedUnit unit;
    unit.element = parallel::ElementOf(gate_up);
    unit.gate = DeviceGate(activation);
    unit.rows = gate_up.size(0);
    unit.n = n;
    unit.gate_up = gate_up.const_data_ptr();
    unit.out = out.data_ptr();
    kernels->table.gated_unit(unit, kernels->stream);
    return;
  }
  if (!parallel::ByHostKernels(gate_up)) {
    const at::Tensor gate = gate_up.narrow(1, 0, n);
    out.copy_((silu ? at::silu(gate) : at::gelu(gate, "tanh")).mul_(gate_up.narrow(1, n, n)));
    return;
  }
  const kernels::Gate gate = silu ? kernels::Gate::kSilu : kernels::Gate::kGeluTanh;
  WithHostType(gate_up, [&]<typename T>(T) {
    at::parallel_for(0, gate_up.size(0), RowGrain(n), [&](int64_t begin, int64_t end) {
      kernels::GatedUnit(gate, HostData<T>(gate_up) + begin * 2 * n, end - begin, n,
                         HostData<T>(out) + begin * n);
    });
  });
}

void AddInto(at::Tensor& x, const at::Tensor& y) { x.add_(y); }

void AddRmsNormInto(at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                    const NormOptions& options, at::Tensor& out) {
  if (parallel::ByHostKernels(x)) {
    AddInto(x, y);
    RmsNormInto(x, weight, options, out);
  } else {
    AddAndNormalize(x, y, NormRows::Of(x), weight, options, x, out);
  }
}

void AttendInto(const at::Tensor& qkv, const AttentionShape& shape, const CachedLayer& cache,
                const ScoreOptions& options, at::Tensor& out) {
  if (!parallel::ByHostKernels(qkv)) return AttendOnDevice(qkv, shape, cache, options, out);
  WithHostType(qkv, [&]<typename T>(T) {
    WriteKeysAndValues<T>(qkv, shape, cache);
    AttendOnHost<T>(qkv, shape, cache, options, out);
  });
}

}  // namespace keel::model
