#include "model/ops/paged_attention.h"

#include <tuple>

#include "model/ops/attention_sinks.h"
#include "model/ops/device_ops.h"
#include "model/ops/exact_attention.h"

namespace keel::model {

namespace {

// Each prompt to itself, all at once.
void AttendToThemselves(const at::Tensor& qkv, const AttentionShape& shape,
                        const ScoreOptions& options, const DecodePlan::Prompts& prompts,
                        at::Tensor& out) {
  const at::Tensor heads =
      qkv.index_select(0, prompts.rows)
          .view({prompts.rows.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
  auto [result, log_sum, seed, offset, debug] = at::_flash_attention_forward(
      heads.narrow(1, 0, shape.heads), heads.narrow(1, shape.heads, shape.kv_heads),
      heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads), prompts.boundaries,
      prompts.boundaries, prompts.longest, prompts.longest, 0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, options.ScaleOf(shape));
  if (options.sinks != nullptr) {
    at::Tensor by_head = result.transpose(0, 1);
    AddSinks(*options.sinks, log_sum, by_head);
  }
  out.index_copy_(0, prompts.rows, result.view({prompts.rows.size(0), out.size(1)}));
}

}  // namespace

void AttendByKernels(const parallel::DeviceKernels& kernels, at::Tensor& qkv,
                     const AttentionShape& shape, const PagedWay& way, const CachedLayer& cache,
                     const ScoreOptions& options, at::Tensor& out) {
  const DecodePlan& plan = way.plan;
  const DecodePlan::Group& group = plan.groups[cache.store.group(cache.layer)];
  const at::Tensor& keys = cache.store.keys(cache.layer);
  const at::Tensor& values = cache.store.values(cache.layer);

  // 1. Turn, and into the store.
  gpu::Rotate rotate =
      RotationOf(qkv, shape, way.rotation != nullptr ? &way.rotation->table : nullptr,
                 way.rotation != nullptr ? way.rotation->rows : at::Tensor(), qkv);
  rotate.kv = {keys.data_ptr(), values.data_ptr(), group.slots.const_data_ptr<int32_t>(),
               cache.store.block_size()};
  kernels.table.rotate(rotate, kernels.stream);

  // 2. Prompts that begin here have all they see in qkv.
  const DecodePlan::Prompts& begun = plan.begun;
  const bool apart = begun.longest > 0 && !way.fixed_order && IsForFlash(qkv, shape) &&
                     !NeedsExact(options, begun.longest);
  if (apart) AttendToThemselves(qkv, shape, options, begun, out);

  // 3. All others.
  const DecodePlan::Queries& queries = apart ? plan.continued : plan.all;
  if (queries.rows.size(0) == 0) return;
  gpu::PagedAttention attention;
  attention.element = parallel::ElementOf(qkv);
  attention.tokens = queries.rows.size(0);
  attention.heads = shape.heads;
  attention.kv_heads = shape.kv_heads;
  attention.head_dim = shape.head_dim;
  attention.qkv = qkv.const_data_ptr();
  attention.keys = keys.const_data_ptr();
  attention.values = values.const_data_ptr();
  attention.block_size = cache.store.block_size();
  attention.rows = queries.rows.const_data_ptr<int32_t>();
  attention.sequences = queries.sequences.const_data_ptr<int32_t>();
  attention.positions = queries.positions.const_data_ptr<int32_t>();
  attention.blocks = group.blocks.const_data_ptr<int32_t>();
  attention.table_width = group.blocks.size(1);
  attention.scale = static_cast<float>(options.ScaleOf(shape));
  attention.softcap = static_cast<float>(options.softcap);
  attention.window = options.window;
  const at::Tensor sinks =
      options.sinks != nullptr ? options.sinks->value.detach().to(at::kFloat) : at::Tensor();
  if (sinks.defined()) attention.sinks = sinks.const_data_ptr<float>();
  attention.out = out.data_ptr();
  attention.longest = queries.longest;
  const at::Tensor scratch =
      at::empty({gpu::AttentionScratch(attention)}, qkv.options().dtype(at::kFloat));
  attention.scratch = scratch.data_ptr<float>();
  kernels.table.paged_attention(attention, kernels.stream);
}

}  // namespace keel::model
