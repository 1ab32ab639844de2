// RlState: what an RL run must remember beside weights, optimizer and position: a document of the
// checkpoint, rl_state.json.
#pragma once

#include <cstdint>
#include <string>

#include "common/json.h"
#include "common/status.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer::rl {

struct RlState {
  WeightVersion version;                // of the weights that the checkpoint holds
  int64_t critic_optimizer_steps = 0;   // Adam's t
  Json kl_controller = Json::object();  // see KlController
  Json entropy_controller = nullptr;    // see EntropyController; null: the run has none
};

std::string RlStateJson(const RlState& state);
// kInvalidData names the key.
Result<RlState> ParseRlState(const std::string& text);

}  // namespace keel::trainer::rl
