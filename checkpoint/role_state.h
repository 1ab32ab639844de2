// RoleState: one model of the run as a checkpoint sees it.
#pragma once

#include <string>

#include "common/shard_table.h"

namespace keel::checkpoint {

// "actor" now; "critic" with RL. The tables' views point into live memory and must stay unchanged
// until Save returns.
struct RoleState {
  std::string name;
  ShardTable model;      // canonical HF names -> actor/model/rank_xxxxx.safetensors
  ShardTable optimizer;  // optimizer.{master,exp_avg,exp_avg_sq}.<name> -> actor/optimizer/…
};

}  // namespace keel::checkpoint
