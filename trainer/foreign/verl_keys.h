// The keys of verl 0.9.1's trainers of RL: those of its ppo_trainer.yaml with each of its engines
// (FSDP, Megatron, torchtitan, VeOmni), and some that its scripts add. What each becomes here.
#pragma once

#include <span>

#include "trainer/foreign/key_table.h"

namespace keel::trainer::foreign {

inline constexpr const char* kVerl = "verl 0.9.1";

std::span<const Row> VerlRows();

}  // namespace keel::trainer::foreign
