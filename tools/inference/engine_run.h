// What keel generate and keel score do alike with an engine: one rank reads the rows and says which
// prompts come next, every rank of the model takes them in the same order, and one writes what
// comes out.
#pragma once

#include <functional>

#include "common/progress.h"
#include "rollout/engine.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/input_rows.h"
#include "tools/inference/prompt_relay.h"

namespace keel::tools {

struct EngineRun {
  InferenceModel& model;
  rollout::Engine& engine;
  rollout::SamplingParams sampling;  // of each request; the same on every rank
  int64_t samples = 1;               // requests a row
};

// On the rank that leads: calls `take` with each completion as it comes, of the row that its
// prompt_id is the number of, and shows in `bar` how far it is. The ranks have left together then.
void RunRows(const EngineRun& run, const InputRows& rows, const Progress::Options& bar,
             const std::function<void(const rollout::Completion&)>& take);

// What the other ranks do meanwhile.
void FollowRows(const EngineRun& run);

}  // namespace keel::tools
