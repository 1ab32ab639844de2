// Config: everything a run is told, as plain structs that mirror the YAML's paths (verl's names).
// The tables of the config_*.cc files give each field its range, unit and meaning. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/options/flat_values.h"
#include "common/options/schema.h"
#include "common/status.h"
#include "trainer/config/config_async.h"
#include "trainer/config/config_rl.h"
#include "trainer/config/config_rollout.h"
#include "trainer/config/sections.h"

namespace keel::trainer {

struct ActorSection {
  MegatronSection megatron;
  OptimSection optim;
  CheckpointSection checkpoint;
  ActorLossSection loss;  // its keys stand directly under actor
};

struct ActorRolloutRefSection {
  ModelSection model;
  ActorSection actor;
  RolloutSection rollout;
  RefSection ref;
};

struct Config {
  TrainerSection trainer;
  DataSection data;
  ActorRolloutRefSection actor_rollout_ref;
  CriticSection critic;
  AlgorithmSection algorithm;
  rewards::RewardSection reward;
  DpoSection dpo;
  AsyncSection async_training;
};

CommonSections CommonOf(const Config& config);

// The table, bound to `config`, which must outlive it.
options::Schema MakeSchema(Config& config);

struct LoadedConfig {
  Config config;
  std::string resolved;            // YAML of all values, as given
  std::string with_origins;        // the same with a comment for each value's origin
  std::vector<std::string> notes;  // what of the file gave way to the command line, as sentences
  std::string by_hand;             // the file's text; empty: it is what `resolved` of a run was
};

// kConfig with every problem of file and overrides; kNotFound when there is no file. Paths are left
// as they are given: all of them, in the file and among the overrides, are relative to the working
// directory.
Result<LoadedConfig> LoadConfig(const std::string& path, const std::vector<std::string>& overrides);

// What differs between the resolved configuration that a checkpoint was saved with and this run's.
// A key that the release that saved it did not know counts as having had its default.
Result<std::vector<options::ValueChange>> ConfigChanges(const std::string& saved,
                                                        const std::string& now);

// The keys whose values may differ from node to node, such as paths; all others are the job's.
std::set<std::string> PerNodeKeys();
// The keys whose values are in no message, since they may hold passwords.
std::set<std::string> SecretKeys();
// The keys on which a response of RL, or its score, depends: of a map, the name of the map.
std::set<std::string> SampleKeys();

// "HH:MM:SS" in seconds; nothing when it is not of that form.
std::optional<int64_t> ParseRunTime(const std::string& text);

// What does not fit together, or is not in this release: every problem as a sentence that names the
// keys. `world` is the number of ranks.
std::vector<std::string> ValidateConfig(const Config& config, int world);

}  // namespace keel::trainer
