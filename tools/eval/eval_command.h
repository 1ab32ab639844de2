// keel eval, as asked for on the command line. Its flags are in eval_flags.cc, which needs no
// torch; its work is in the keel_torch module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/launch_env.h"
#include "rollout/sampling.h"

namespace keel::tools {

struct EvalArguments {
  std::string model, base, dtype;
  std::string device = "auto";
  std::vector<std::string> data;
  std::string output;                  // a folder
  std::string config;                  // a run's YAML, of which `reward` and `data` are read
  std::vector<std::string> overrides;  // "reward.type=gsm8k"
  rollout::SamplingParams sampling;
  int64_t n = 1;            // samples a row
  std::vector<int64_t> ks;  // of pass@k and maj@k; empty: 1 and n
  std::optional<int64_t> most_rows;
  double right_at = 1;  // the least score of a right response, where the reward says no "acc"
  int64_t max_num_seqs = 256;
  int64_t cache_megabytes = 0;
  int64_t tp = 0;           // ranks that share a copy of the model; 0: one
  parallel::LaunchEnv env;  // who this one is of all
};

// Throws keel::Error.
void Evaluate(const EvalArguments& arguments);

}  // namespace keel::tools
