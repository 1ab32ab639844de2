// What all blocks of one forward read: of training, and of generation.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "model/config/layer_spec.h"
#include "model/ops/decode_plan.h"
#include "model/ops/kv_cache.h"
#include "model/ops/ops.h"
#include "model/ops/packed_prompts.h"
#include "model/ops/rotation.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

struct Rotations {
  Rotation main, local;
  // Null: queries and keys are not turned.
  const Rotation* Of(RopeChoice choice) const {
    if (choice == RopeChoice::kNone) return nullptr;
    return choice == RopeChoice::kLocal ? &local : &main;
  }
};

// What a forward of generation reads of its batch, on the model's device.
struct DecodeInputs {
  at::Tensor ids;  // [T] int32
  Rotations rotations;
  std::optional<DecodePlan> plan;  // where Keel's kernels for GPUs attend
};

struct TrainPass {
  parallel::TensorParallel tp;
  Packing packing;
  Rotations rotations;
  at::Tensor counted;  // with experts; see CountedTokens
  // Where tp.arithmetic is kBatchInvariant: what attends.
  std::shared_ptr<const PackedPrompts> prompts;
};

// The memory is used by one block after another.
struct DecodePass {
  parallel::ProcessGroup& group;  // TP
  const std::vector<DecodeSequence>& sequences;
  const KvStore& store;
  Rotations rotations;
  std::optional<DecodePlan> plan;  // where Keel's kernels for GPUs attend
  parallel::Arithmetic arithmetic = parallel::Arithmetic::kGeneration;
  at::Tensor x;  // [T, hidden], the stream through the blocks
  at::Tensor normed, projected, qkv, attended, gate_up, activated;
  at::Tensor beside;  // [T, hidden], of blocks whose parts stand beside each other
};

}  // namespace keel::model
