#include "model/ops/paged_attention.h"

#include <algorithm>

#include "model/ops/device_ops.h"
#include "model/ops/exact_attention.h"

namespace keel::model {

namespace {

void AttendToItself(const at::Tensor& qkv, const AttentionShape& shape, double scale,
                    const DecodePlan::Prompt& prompt, at::Tensor& out) {
  const int64_t d = shape.head_dim;
  const AttentionRun run = {prompt.row, 1, prompt.tokens};
  const at::Tensor result = at::scaled_dot_product_attention(
      HeadsOf(qkv, run, 0, shape.heads, d), HeadsOf(qkv, run, shape.heads, shape.kv_heads, d),
      HeadsOf(qkv, run, shape.heads + shape.kv_heads, shape.kv_heads, d), {}, 0.0,
      /*is_causal=*/true, scale, shape.heads != shape.kv_heads);
  HeadsOf(out, run, 0, shape.heads, d).copy_(result);
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
  int64_t longest = 0;
  for (const DecodePlan::Prompt& prompt : plan.prompts) longest = std::max(longest, prompt.tokens);
  const bool apart = !way.fixed_order && !NeedsExact(options, longest);
  if (apart) {
    for (const DecodePlan::Prompt& prompt : plan.prompts)
      AttendToItself(qkv, shape, options.ScaleOf(shape), prompt, out);
  }

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
  attention.out = out.data_ptr();
  attention.longest = queries.longest;
  const at::Tensor scratch =
      at::empty({gpu::AttentionScratch(attention)}, qkv.options().dtype(at::kFloat));
  attention.scratch = scratch.data_ptr<float>();
  kernels.table.paged_attention(attention, kernels.stream);
}

}  // namespace keel::model
