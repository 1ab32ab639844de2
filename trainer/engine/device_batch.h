// A packed micro-batch as tensors on the model's device.
#pragma once

#include <ATen/ATen.h>

#include "model/decoder.h"
#include "trainer/data/batch.h"

namespace keel::trainer {

model::ModelBatch ToDevice(const MicroBatch& batch, at::Device device);
std::vector<model::ModelBatch> ToDevice(const std::vector<MicroBatch>& batches, at::Device device);

}  // namespace keel::trainer
