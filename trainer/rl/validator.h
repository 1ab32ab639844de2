// Validator: has responses to the validation's prompts generated and scored, and tells of them: in
// metrics, in a dump, and by a few samples for people.
//
// Owned by the RL task; used from the training thread. What the metrics are says validation.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "trainer/config/config.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/rl/dump_writer.h"
#include "trainer/rl/generation/generation.h"
#include "trainer/rl/reward_errors.h"
#include "trainer/run/job.h"
#include "trainer/run/run_course.h"

namespace keel::trainer::rl {

class Validator {
 public:
  // All must outlive this. Without `prompts` there is no validation.
  Validator(Job& job, RunCourse& course, const Config& config, const PromptSet& prompts,
            RewardErrors& errors);

  // The course's first step comes next: files of trainer.validation_data_dir that are not of what
  // the run has done go. On rank 0; others do nothing.
  void Begin();
  // With the weights behind the course's step. The mean score of the responses that count, the same
  // on all ranks; nothing where none counts, there are no prompts, or none were generated, which a
  // warning says. Throws Error(kUnavailable) where reward.on_error has the run end. Collective over
  // all ranks.
  std::optional<double> Validate(Generation& generation);

 private:
  struct Outcome {
    bool counted = false;  // of no response there is no mean
    double mean = 0;
  };
  // On rank 0. `watch`: since the validation began.
  Outcome Report(std::vector<Response> responses, const Stopwatch& watch);
  // The first `most` prompts' first responses, in order.
  void EachSample(const RolloutBatch& batch, int64_t most,
                  const std::function<void(const Response&, const Prompt&)>& take) const;
  std::string ConsoleSamples(const RolloutBatch& batch) const;

  Job& job_;
  RunCourse& course_;
  const Config& c_;
  const PromptSet& prompts_;
  RewardErrors& errors_;
  DumpWriter dumps_;
};

}  // namespace keel::trainer::rl
