// Decoder::Decode: the forward of generation.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "model/decoder.h"
#include "model/ops/decode_ops.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/send.h"

namespace keel::model {

KvShape Decoder::kv_shape() const {
  KvShape shape = {static_cast<int64_t>(blocks_.size()), attention_.kv_heads, attention_.head_dim,
                   options_.dtype, options_.device};
  for (const Block& block : blocks_) shape.windows.push_back(block.attention.scores.window);
  return shape;
}

namespace {

// The rows [0, rows) of a buffer that only ever grows.
at::Tensor Rows(at::Tensor* buffer, int64_t rows, int64_t columns,
                const at::TensorOptions& options) {
  if (!buffer->defined() || buffer->size(0) < rows)
    *buffer = at::empty({std::max(rows, buffer->defined() ? 2 * buffer->size(0) : rows), columns},
                        options);
  return buffer->narrow(0, 0, rows);
}

}  // namespace

at::Tensor Decoder::Decode(const DecodeBatch& batch, const KvStore& store) {
  TORCH_CHECK(first_stage() && last_stage(), "Decode needs the whole model on one stage");
  const at::NoGradGuard no_grad;
  const auto tokens = static_cast<int64_t>(batch.ids.size());
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);

  // 1. Where each token stands.
  std::vector<TextPart> parts;
  int64_t rows = 0;
  for (const DecodeSequence& s : batch.sequences) {
    parts.push_back({s.past, s.tokens, s.length});
    rows += s.tokens;
  }
  TORCH_CHECK(rows == tokens, "DecodeBatch holds ", tokens, " ids for ", rows, " tokens");
  Rotations rotations{main_rope_.At(parts), {}};
  rotations.local = config_.local_rope ? local_rope_.At(parts) : rotations.main;
  const at::Tensor ids =
      parallel::SentTo(options_.device, at::tensor(batch.ids, at::kInt).to(at::kLong));

  // 2. Memory of one block, used by all. Tokens are whole on every rank, whatever training does.
  const parallel::TensorParallel tp{tp_.group, false};
  Workspace& w = workspace_;
  at::Tensor x = parallel::VocabParallelEmbedding(tp, embedding_).Forward(ids).contiguous();
  if (const double scale = EmbeddingScale(); scale != 1) x.mul_(scale);
  std::optional<DecodePlan> plan;
  if (parallel::KernelsFor(x))
    plan = DecodePlan::Of(batch.sequences, store.block_size(), options_.device);
  const int64_t heads = attention_.heads, kv_heads = attention_.kv_heads;
  const int64_t ffn = split_.ffn.size;
  DecodePass pass{*tp.group,
                  batch.sequences,
                  store,
                  rotations,
                  std::move(plan),
                  batch.fixed_height,
                  x,
                  Rows(&w.normed, tokens, config_.hidden_size, options),
                  Rows(&w.projected, tokens, config_.hidden_size, options),
                  Rows(&w.qkv, tokens, (heads + 2 * kv_heads) * attention_.head_dim, options),
                  Rows(&w.attended, tokens, heads * attention_.head_dim, options),
                  Rows(&w.gate_up, tokens, 2 * ffn, options),
                  Rows(&w.activated, tokens, ffn, options)};

  // 3. The blocks.
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    blocks_[layer].Decode(pass, static_cast<int64_t>(layer));

  // 4. Only the rows that are asked for.
  if (static_cast<int64_t>(batch.outputs.size()) == tokens) return x;
  const at::Tensor wanted = parallel::SentTo(options_.device, at::tensor(batch.outputs, at::kLong));
  return x.index_select(0, wanted);
}

at::Tensor Decoder::DecodeLogits(const at::Tensor& hidden, bool fixed_height) {
  const at::NoGradGuard no_grad;
  const int64_t rows = hidden.size(0);
  const int64_t tp = tp_.group->size();
  at::Tensor normed = at::empty_like(hidden);
  RmsNormInto(hidden, final_norm_->value, NormOf(config_.Layer(0)), normed);
  // Rounded to the model's dtype, as training's logits are.
  at::Tensor rounded = at::empty({rows, head_weight_->rows()}, hidden.options());
  LinearInto(normed, head_weight_->value, nullptr, rounded, fixed_height);
  parallel::FinishLogits(head_, rounded);
  if (tp == 1) return rounded.narrow(1, 0, config_.vocab_size);
  at::Tensor all = at::empty({tp, rows, head_weight_->rows()}, rounded.options());
  tp_.group->AllGather(all, rounded);
  return all.transpose(0, 1)
      .reshape({rows, tp * head_weight_->rows()})
      .narrow(1, 0, config_.vocab_size);
}

}  // namespace keel::model
