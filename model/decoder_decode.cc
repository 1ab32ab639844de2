// Decoder::Decode: the forward of generation.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "model/decoder.h"
#include "model/ops/decode_ops.h"
#include "model/ops/learned_positions.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/row_product.h"
#include "parallel/tensor/scale.h"
#include "parallel/tensor/send.h"

namespace keel::model {

KvShape Decoder::kv_shape() const {
  KvShape shape = {static_cast<int64_t>(blocks_.size()), attention_.kv_heads, attention_.head_dim,
                   options_.dtype, options_.device};
  for (const Block& block : blocks_) {
    if (const auto* const attention = std::get_if<AttentionLayer>(&block.mixer)) {
      shape.windows.push_back(attention->scores.window);
      continue;
    }
    shape.windows.push_back(kNoKeys);
    shape.recurrent = std::get<DeltaMixer>(block.mixer).shape;
  }
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

DecodeNumbers Decoder::NumbersOf(const DecodeBatch& batch, int64_t block_size, int64_t longest) {
  std::vector<TextPart> parts;
  int64_t rows = 0;
  for (const DecodeSequence& s : batch.sequences) {
    parts.push_back({s.past, s.tokens, s.length});
    rows += s.tokens;
  }
  TORCH_CHECK(rows == std::ssize(batch.ids), "DecodeBatch holds ", batch.ids.size(), " ids for ",
              rows, " tokens");
  const std::vector<int32_t> main = main_rope_.RowsOf(parts, longest);
  DecodeNumbers numbers = DecodeNumbers::Of(
      batch, main, config_.local_rope ? local_rope_.RowsOf(parts, longest) : main);
  if (parallel::KernelsFor(options_.device))
    numbers.AddPlaces(batch.sequences, block_size, longest);
  return numbers;
}

DecodeInputs Decoder::InputsOf(const DecodeNumbers& numbers, const at::Tensor& values) {
  DecodeInputs inputs;
  inputs.ids = PartOf(values, numbers.ids);
  inputs.rotations.main = {main_rope_.table(), PartOf(values, numbers.main_rows)};
  inputs.rotations.local = config_.local_rope
                               ? Rotation{local_rope_.table(), PartOf(values, numbers.local_rows)}
                               : inputs.rotations.main;
  if (parallel::KernelsFor(values)) inputs.plan = DecodePlan::On(numbers, values);
  return inputs;
}

at::Tensor Decoder::Decode(const DecodeBatch& batch, const KvStore& store) {
  const DecodeNumbers numbers = NumbersOf(batch, store.block_size());
  const at::Tensor values = parallel::SentTo(options_.device, at::tensor(numbers.values, at::kInt));
  const at::Tensor x =
      DecodeAll(InputsOf(numbers, values), batch.sequences, store, batch.arithmetic);
  // Only the rows that are asked for.
  if (batch.outputs.size() == batch.ids.size()) return x;
  const at::Tensor wanted = parallel::SentTo(options_.device, at::tensor(batch.outputs, at::kLong));
  return x.index_select(0, wanted);
}

at::Tensor Decoder::DecodeAll(const DecodeInputs& inputs,
                              const std::vector<DecodeSequence>& sequences, const KvStore& store,
                              parallel::Arithmetic arithmetic) {
  TORCH_CHECK(first_stage() && last_stage(), "Decode needs the whole model on one stage");
  const at::NoGradGuard no_grad;
  const int64_t tokens = inputs.ids.size(0);
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);

  // 1. Memory of one block, used by all. Tokens are whole on every rank, whatever training does.
  const parallel::TensorParallel tp{tp_.group, false};
  Workspace& w = workspace_;
  at::Tensor x = parallel::VocabParallelEmbedding(tp, embedding_)
                     .Forward(inputs.ids.to(at::kLong))
                     .contiguous();
  if (const double scale = EmbeddingScale(); scale != 1) parallel::ScaleInPlace(x, scale);
  if (positions_ != nullptr) {
    // Without a stretched rotation the row of a token in its table is the token's position.
    AddPositionsInPlace(x, inputs.rotations.main.rows, config_.learned_positions().first,
                        *positions_);
  }
  const int64_t heads = attention_.heads, kv_heads = attention_.kv_heads;
  const int64_t ffn = split_.ffn.size;
  DecodePass pass{
      *tp.group,
      sequences,
      store,
      inputs.rotations,
      inputs.plan,
      arithmetic,
      x,
      Rows(&w.normed, tokens, config_.hidden_size, options),
      Rows(&w.projected, tokens, config_.hidden_size, options),
      Rows(&w.qkv, tokens, (heads + 2 * kv_heads) * attention_.head_dim, options),
      Rows(&w.attended, tokens, heads * attention_.head_dim, options),
      Rows(&w.gate_up, tokens, 2 * ffn, options),
      Rows(&w.activated, tokens, ffn, options),
      Rows(&w.beside, config_.parallel_residual ? tokens : 0, config_.hidden_size, options)};

  // 2. The blocks.
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    blocks_[layer].Decode(pass, static_cast<int64_t>(layer));
  return x;
}

bool Decoder::DecodesWithoutHost() const {
  if (tp_.group->size() > 1 || !parallel::KernelsFor(options_.device)) return false;
  return std::all_of(blocks_.begin(), blocks_.end(),
                     [](const Block& block) { return block.DecodesWithoutHost(); });
}

std::vector<const void*> Decoder::DecodeAddresses() const {
  std::vector<const void*> addresses;
  const auto add = [&](const at::Tensor& t) {
    addresses.push_back(t.defined() ? t.const_data_ptr() : nullptr);
  };
  for (const parallel::Parameter* p : parameter_list_) add(p->value);
  for (const Rotator* rope : {&main_rope_, &local_rope_}) {
    add(rope->table().cosine);
    add(rope->table().sine);
    add(rope->table().query_scale);
  }
  const Workspace& w = workspace_;
  for (const at::Tensor& t :
       {w.normed, w.projected, w.qkv, w.attended, w.gate_up, w.activated, w.beside})
    add(t);
  return addresses;
}

at::Tensor Decoder::DecodeLogits(const at::Tensor& hidden, parallel::Arithmetic arithmetic) {
  const at::NoGradGuard no_grad;
  const int64_t rows = hidden.size(0);
  const int64_t tp = tp_.group->size();
  at::Tensor normed = at::empty_like(hidden);
  final_norm_.Into(hidden, normed);
  // Rounded to the model's dtype, as training's logits are.
  at::Tensor rounded = at::empty({rows, head_weight_->rows()}, hidden.options());
  parallel::LinearInto(normed, *head_weight_, head_bias_, rounded, arithmetic);
  parallel::FinishLogits(head_, rounded);
  if (tp == 1) return rounded.narrow(1, 0, config_.vocab_size);
  at::Tensor all = at::empty({tp, rows, head_weight_->rows()}, rounded.options());
  tp_.group->AllGather(all, rounded);
  return all.transpose(0, 1)
      .reshape({rows, tp * head_weight_->rows()})
      .narrow(1, 0, config_.vocab_size);
}

}  // namespace keel::model
