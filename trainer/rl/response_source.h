// ResponseSource: the responses that a step learns from: generated and scored, filtered and shaped
// as the configuration says, or read back from an earlier run's dump. Owned by the RL task.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/data/sample_order.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/dump_writer.h"
#include "trainer/rl/generation/generation.h"
#include "trainer/rl/reward_errors.h"
#include "trainer/run/job.h"

namespace keel::trainer::rl {

class ResponseSource {
 public:
  // All must outlive this. `dumps`: of trainer.rollout_data_dir; null on ranks that write none.
  ResponseSource(const Config& config, const PromptSet& prompts, SampleOrder& order,
                 Generation& generation, Job& job, RewardErrors& errors, DumpWriter* dumps)
      : c_(config),
        prompts_(prompts),
        order_(order),
        generation_(generation),
        job_(job),
        context_(job.context()),
        device_(job.device()),
        errors_(errors),
        dumps_(dumps) {}

  // Of the prompts from `position` of the run on; `*consumed` of them were used, on every rank. The
  // responses are on rank 0, which decides what becomes of them, and so are reward/{errors,samples}
  // and rollout metrics; others have an empty batch. Adds timing_s/{gen,reward,...}. Throws
  // Error(kUnavailable) where reward.on_error has the run end. Nothing where the run was asked to
  // stop when algorithm.filter_groups wanted another batch, and where Generation::Await is false or
  // its Run gives nothing.
  // Collective over all ranks.
  std::optional<RolloutBatch> Next(int64_t step, int64_t position, int64_t* consumed,
                                   StepLine* metrics);
  // Whether responses were handed out for the last step that was asked for.
  bool handed_out() const { return handed_out_; }

 private:
  std::optional<RolloutBatch> Generate(int64_t step, int64_t position, int64_t* consumed,
                                       StepLine* metrics);
  // On rank 0: takes into `kept` what of `fresh` is learnt from; true when that is enough.
  bool Choose(int64_t step, int64_t batches, std::vector<Response> fresh,
              std::vector<Response>* kept);
  void Shape(std::vector<Response>* responses) const;
  bool Filter(int64_t step, std::vector<Response> fresh, int64_t batches,
              std::vector<Response>* kept) const;
  // That the filter goes on, the longer it does the more rarely.
  void WarnOfBatches(int64_t step, int64_t batches, int64_t groups) const;
  void MaskOut(RolloutBatch* batch) const;

  const Config& c_;
  const PromptSet& prompts_;
  SampleOrder& order_;
  Generation& generation_;
  Job& job_;
  parallel::ParallelContext& context_;
  const at::Device device_;
  RewardErrors& errors_;
  DumpWriter* const dumps_;
  bool handed_out_ = false;
};

}  // namespace keel::trainer::rl
