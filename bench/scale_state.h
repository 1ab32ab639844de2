// The state of a rank of a made-up job: the tables of a Llama of a given size, cut as the trainer
// cuts it (TP by rows or columns, PP by layers, ZeRO-1 by rows), over memory that is all zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/role_state.h"
#include "common/memory/host_memory.h"
#include "common/tensors/shard_table.h"
#include "parallel/gradients/bucket_layout.h"
#include "parallel/layout.h"

namespace keel::bench {

struct ScaleModel {
  std::string_view name;
  int layers = 0;
  int64_t hidden = 0, inner = 0, kv = 0, vocabulary = 0;
};

// A job of one of the sizes that are known: 128, 1024, 4096, 16384. Throws keel::Error.
struct ScaleJob {
  ScaleModel model;
  parallel::Layout layout;
  static ScaleJob Of(int ranks);
};

class ScaleState {
 public:
  explicit ScaleState(const ScaleJob& job);

  // 14 bytes a parameter: bf16 weights, of which DP ranks hold copies, and fp32 optimizer state.
  // The views of all shards are the `memory` given, or nothing.
  checkpoint::RoleState Of(int rank, std::byte* memory = nullptr) const;
  // What the largest of the rank's shards takes: no view is longer.
  static int64_t LargestShard(const checkpoint::RoleState& role);

 private:
  struct Parameter {
    std::string name;
    Dims shape;    // of the whole tensor
    int cut = -1;  // the dim that TP cuts; -1: every TP rank holds all of it
  };
  struct Stage {
    std::vector<Parameter> parameters;
    std::vector<parallel::ParameterExtent> extents;  // beside them, of a TP rank's part
    parallel::BucketLayout buckets;
  };
  Box PartOf(const Parameter& parameter, int tp_rank) const;

  ScaleJob job_;
  std::vector<Stage> stages_;
};

}  // namespace keel::bench
