#include "trainer/engine/device_batch.h"

#include "parallel/tensor/send.h"

namespace keel::trainer {

model::ModelBatch ToDevice(const MicroBatch& batch, at::Device device) {
  model::ModelBatch out;
  const auto tensor = [&](const std::vector<int32_t>& values, at::ScalarType type) {
    return parallel::SentTo(device, at::tensor(values, at::kInt).to(type));
  };
  out.ids = tensor(batch.ids, at::kLong);
  out.targets = tensor(batch.targets, at::kLong);
  out.packing.positions = tensor(batch.positions, at::kInt);
  out.packing.boundaries = batch.boundaries;
  out.packing.lengths = batch.lengths;
  return out;
}

std::vector<model::ModelBatch> ToDevice(const std::vector<MicroBatch>& batches, at::Device device) {
  std::vector<model::ModelBatch> out;
  for (const MicroBatch& batch : batches) out.push_back(ToDevice(batch, device));
  return out;
}

}  // namespace keel::trainer
