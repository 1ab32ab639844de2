// What keel generate and keel score do alike with an engine: all rows are known beforehand, every
// rank of the model takes them in the same order, and one writes what comes out.
#pragma once

#include <functional>

#include "rollout/engine.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/prompt_relay.h"
#include "tools/inference/row_output.h"

namespace keel::tools {

struct EngineRun {
  InferenceModel& model;
  rollout::Engine& engine;
  // Requests of all prompts; the same on every rank.
  std::function<void(const Prompts&)> add;
};

// On the rank that leads: sends the prompts, calls `take` with each completion as it comes, shows
// in `bar` how far it is, and finishes `out`. The ranks have left together then.
void RunRows(const EngineRun& run, const Prompts& prompts, const Progress::Options& bar,
             const std::function<void(const rollout::Completion&)>& take, RowOutput* out);

// What the other ranks do meanwhile.
void FollowRows(const EngineRun& run);

}  // namespace keel::tools
