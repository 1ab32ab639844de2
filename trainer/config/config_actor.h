// The keys of `actor_rollout_ref.model` and of the actor's layout, optimizer and checkpoints, and
// what of them does not go with the rest. Those of its loss: config_rl.h.
#pragma once

#include <string>
#include <vector>

namespace keel::options {
class Schema;
}

namespace keel::trainer {

struct Config;

void AddActorOptions(Config& config, options::Schema& schema);
// Sentences that name the keys.
std::vector<std::string> ValidateActor(const Config& config);

}  // namespace keel::trainer
