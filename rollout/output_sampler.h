// OutputSampler: what is made of the logits of a step: the tokens that sequences go on with, and
// what is said of prompts.
//
// Tokens are chosen where the logits are if all that is asked for can be had there
// (device_sampler.h), else on the host (sampler.h). Owns nothing and remembers nothing;
// thread-safe, not collective: ranks with the same logits make the same of them.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "model/ops/kv_cache.h"
#include "rollout/log_probs_mode.h"
#include "rollout/sampler.h"
#include "rollout/scheduler.h"
#include "rollout/sequence.h"

namespace keel::rollout {

// A row of logits that somebody waits for.
struct StepOutput {
  Sequence* sequence = nullptr;
  int64_t position = 0;  // of the token whose row it is
  int64_t row = 0;       // of the logits of the step, where it is
  bool sample = false;   // a token is chosen of it
  Draw draw;             // with which
  // What Sample makes of it; nothing of it counts where there is an error.
  ChosenToken chosen;                    // when sampled
  std::optional<float> prompt_log_prob;  // of the token at position + 1, when asked for
  std::vector<ScoredToken> likeliest;    // when asked for
  Status error;
};

// Those of a step whose batch computes what `plan` says, by ascending rows. Which of the batch's
// rows they need is added to `batch->outputs`. Sequences that follow another share its row.
std::vector<StepOutput> OutputsOf(const StepPlan& plan, model::DecodeBatch* batch);

// SamplingParams::prompt_logits of the sequences that ask for it, by Sequence::arrival: [prompt,
// vocabulary] fp32 on the host.
using PromptLogits = std::map<int64_t, at::Tensor>;

struct OutputSamplerOptions {
  LogProbsMode logprobs_mode = LogProbsMode::kPolicy;
  // Ids from here on, which no token has, are never chosen.
  size_t vocabulary = std::numeric_limits<size_t>::max();
  // Log-probabilities of chosen tokens have the bits of a trainer over `tp` ranks whose logits have
  // these bits, but with kProcessed, which no trainer says.
  bool as_trainer = false;
  int tp = 1;
};

class OutputSampler {
 public:
  explicit OutputSampler(const OutputSamplerOptions& options);

  // `logits`: [rows, vocabulary], whole on this rank, of the rows of the step from `first_row` on;
  // `outputs`: of these rows. What is asked for of prompts' logits goes to `prompt_logits`. Logits
  // that no distribution can be made of are errors of their outputs alone.
  void Sample(const at::Tensor& logits, int64_t first_row, std::span<StepOutput> outputs,
              PromptLogits* prompt_logits) const;

 private:
  bool ChosenByDevice(const at::Tensor& logits, int64_t first_row,
                      std::span<StepOutput> outputs) const;
  void ChooseOnHost(const at::Tensor& on_device, int64_t first_row, std::span<StepOutput> outputs,
                    PromptLogits* prompt_logits) const;
  void SayAsTrainer(const at::Tensor& logits, int64_t first_row,
                    std::span<StepOutput> outputs) const;

  const OutputSamplerOptions options_;
  const Sampler sampler_;
};

}  // namespace keel::rollout
