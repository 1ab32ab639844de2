#include "model/ops/packed_prompts.h"

#include <torch/csrc/autograd/custom_function.h>

#include <span>

#include "model/ops/decode_ops.h"
#include "model/ops/paged_attention.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

constexpr int64_t kBlockSize = 16;

// The values of the one, and the gradient of the other.
struct ValuesFunction : torch::autograd::Function<ValuesFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& computed,
                            const at::Tensor& values) {
    return values.view_as(computed);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], {}};
  }
};

}  // namespace

PackedPrompts::PackedPrompts(const Packing& packing, const AttentionShape& shape,
                             const at::TensorOptions& like)
    : shape_(shape), blocks_(packing.sequences()) {
  int32_t next = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int64_t tokens = packing.tokens(i);
    for (int64_t begin = 0; begin < tokens; begin += kBlockSize) blocks_[i].push_back(next++);
    sequences_.push_back({0, tokens, packing.length(i), std::span(&blocks_[i], 1)});
  }
  keys_ = at::empty({next, shape.kv_heads, kBlockSize, shape.head_dim}, like);
  values_ = at::empty_like(keys_);
  if (!parallel::KernelsFor(keys_)) return;

  DecodeBatch batch;
  batch.sequences = sequences_;
  batch.ids.assign(static_cast<size_t>(packing.boundaries.empty() ? 0 : packing.boundaries.back()),
                   0);
  // Queries and keys are turned by whoever asks.
  const std::vector<int32_t>& unturned = batch.ids;
  DecodeNumbers numbers = DecodeNumbers::Of(batch, unturned, unturned);
  numbers.AddPlaces(sequences_, kBlockSize);
  plan_ = DecodePlan::On(numbers,
                         parallel::SentTo(keys_.device(), at::tensor(numbers.values, at::kInt)));
}

int64_t PackedPrompts::block_size() const { return kBlockSize; }

at::Tensor PackedPrompts::Attend(const at::Tensor& qkv, const ScoreOptions& options) const {
  const at::NoGradGuard no_grad;
  at::Tensor heads = qkv.detach();
  at::Tensor out = at::empty({heads.size(0), shape_.heads * shape_.head_dim}, heads.options());
  const CachedLayer cache = {sequences_, *this, 0};
  if (const auto kernels = parallel::KernelsFor(heads); kernels && plan_) {
    AttendByKernels(*kernels, heads, shape_, {*plan_, nullptr, /*fixed_order=*/true}, cache,
                    options, out);
  } else {
    AttendInto(heads, shape_, cache, options, out);
  }
  return out;
}

at::Tensor PackedPrompts::AttendToLearn(const at::Tensor& qkv, const Packing& packing,
                                        const ScoreOptions& options) const {
  const at::Tensor values = Attend(qkv, options);
  if (!at::GradMode::is_enabled()) return values;
  return ValuesFunction::apply(PackedAttention(qkv, shape_, packing, options), values);
}

}  // namespace keel::model
