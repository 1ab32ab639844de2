// RoleState: one model of the run as a checkpoint sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "checkpoint/base/copy_check.h"
#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

// The state of one role: "actor" always, "critic" too where PPO trains one. The tables' views point
// into live memory. A save that blocks wants it unchanged until Save returns, one in the background
// until WaitFree lets it go.
struct RoleState {
  std::string name;
  ShardTable model;      // canonical HF names -> actor/model/rank_xxxxx.safetensors
  ShardTable optimizer;  // optimizer.{master,exp_avg,exp_avg_sq}.<name> -> actor/optimizer/…
  // The views are a copy that nobody overwrites soon, such as state that is offloaded to the host:
  // a background save reads it where it lies until it is written, at no extra memory.
  bool model_stable = false;
  bool optimizer_stable = false;
  // Values may still be on their way from a device: this returns when those within
  // [begin, begin + bytes) are there. Called from any thread before they are read; an error fails
  // the save. Null: all are there.
  std::function<Status(const std::byte* begin, int64_t bytes)> arrived = nullptr;
  // The parts of `model` that other ranks give, too, and whose copies are not known to be equal: a
  // save compares every byte of them, and fails where they differ. The same on every rank.
  std::set<PartKey> shared = {};
};

}  // namespace keel::checkpoint
