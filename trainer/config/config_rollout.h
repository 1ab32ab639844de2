// Configuration of generation: actor_rollout_ref.rollout, under verl's names. Part of Config; the
// table is in config_rollout.cc. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/options/schema.h"
#include "rollout/log_probs_mode.h"
#include "trainer/config/choices.h"
#include "turns/multi_turn_options.h"

namespace keel::trainer {

// What a number of ranks may say, so that products of two are numbers too.
inline constexpr double kMostRanks = 1 << 20;

struct Config;

// Of validation; the rest is as in training.
struct ValSamplingSection {
  int64_t n = 1;
  double temperature = 0;
  int64_t top_k = -1;
  double top_p = 1;
  bool do_sample = false;
};

// Of the way of the weights from trainer to rollout.
struct CheckpointEngineSection {
  int64_t update_weights_bucket_megabytes = 2048;
};

struct RolloutSection {
  int64_t n = 1;
  double temperature = 1;
  int64_t top_k = -1;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  bool ignore_eos = false;
  std::optional<int64_t> seed;
  int64_t max_num_batched_tokens = 8192;
  int64_t max_num_seqs = 256;
  std::optional<int64_t> max_model_len;
  bool enable_chunked_prefill = true;
  bool enable_prefix_caching = true;
  int64_t block_size = 16;
  std::optional<int64_t> kv_cache_megabytes;
  double gpu_memory_utilization = 0.5;
  bool free_cache_engine = true;
  std::optional<int64_t> tensor_model_parallel_size;
  std::optional<WeightDtype> dtype;
  bool calculate_log_probs = true;
  rollout::LogProbsMode logprobs_mode = rollout::LogProbsMode::kPolicy;
  bool batch_invariant = false;
  bool enforce_eager = false;
  ValSamplingSection val_kwargs;
  turns::MultiTurnSection multi_turn;
  CheckpointEngineSection checkpoint_engine;
  WeightSyncMode weight_sync = WeightSyncMode::kInPlace;
  VerifySync verify_sync = VerifySync::kOff;
};

void AddRolloutOptions(Config& config, options::Schema& schema);
std::vector<std::string> ValidateRolloutConfig(const Config& config);
// What is allowed, but is not what one might take it for, in RL: sentences that name the keys, for
// the log of a run's start.
std::vector<std::string> RolloutRemarks(const Config& config);

}  // namespace keel::trainer
