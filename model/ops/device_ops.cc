#include "model/ops/device_ops.h"

#include "parallel/tensor/device_kernels.h"

namespace keel::model {

gpu::Rotate RotationOf(const at::Tensor& in, const AttentionShape& shape, const RopeTable* table,
                       const at::Tensor& positions, at::Tensor& out) {
  gpu::Rotate rotate;
  rotate.element = parallel::ElementOf(in);
  rotate.rows = in.size(0);
  rotate.heads = shape.heads;
  rotate.kv_heads = shape.kv_heads;
  rotate.head_dim = shape.head_dim;
  rotate.in = in.const_data_ptr();
  rotate.out = out.data_ptr();
  if (table == nullptr) return rotate;
  rotate.half = table->cosine.size(1);
  rotate.interleaved = table->interleaved;
  rotate.positions = positions.const_data_ptr<int32_t>();
  rotate.cosine = table->cosine.const_data_ptr<float>();
  rotate.sine = table->sine.const_data_ptr<float>();
  return rotate;
}

gpu::Gate DeviceGate(Activation activation) {
  return activation == Activation::kSilu ? gpu::Gate::kSilu : gpu::Gate::kGeluTanh;
}

}  // namespace keel::model
