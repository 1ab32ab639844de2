// Engine: generates from the very weights that are trained, by continuous batching over a paged KV
// cache.
//
// Holds references to the model and the TP group, which must outlive it; the weights belong to the
// caller, who may change them between steps and then says so with SetWeightVersion. Every TP rank
// has an engine and makes the same calls in the same order; Step() and Generate() are collective
// over TP, and every rank gets the same completions. Used from one thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "parallel/groups/process_group.h"
#include "parallel/tensor/arithmetic.h"
#include "rollout/block_manager.h"
#include "rollout/decode_graphs.h"
#include "rollout/kv_cache.h"
#include "rollout/output_sampler.h"
#include "rollout/scheduler.h"
#include "rollout/sequence.h"

namespace keel::rollout {

struct EngineOptions {
  SchedulerOptions scheduler;
  bool enable_prefix_caching = true;
  // What becomes of keys and values of running sequences under new weights: see SetWeightVersion.
  bool recompute_kv = true;
  int32_t block_size = 16;  // tokens
  // Memory for keys and values of this rank. 0: on CPU enough for max_num_seqs of max_model_len
  // tokens, at most 1 GiB; on CUDA gpu_memory_utilization of what is free.
  int64_t kv_cache_bytes = 0;
  double gpu_memory_utilization = 0.5;
  int64_t max_model_len = 0;  // prompt and response; 0: the model's LongestGenerated()
  bool calculate_log_probs = true;
  LogProbsMode logprobs_mode = LogProbsMode::kPolicy;
  // Log-probabilities equal bit for bit whatever else is in the batch, and equal those of a trainer
  // whose forward is kBatchInvariant (parallel::Arithmetic). The former is always so on CPU; on
  // CUDA products are then computed for a fixed number of rows. With more than two TP ranks sums
  // over ranks are in rank order, which costs a gather instead of a reduction.
  bool batch_invariant = false;
  parallel::Arithmetic arithmetic() const {
    return batch_invariant ? parallel::Arithmetic::kBatchInvariant
                           : parallel::Arithmetic::kGeneration;
  }
  // Gives a GPU each step operation by operation, without recordings (DecodeGraphs).
  bool enforce_eager = false;
  // Told why steps that might be are not replayed; null: nobody is.
  std::function<void(const std::string&)> warn;
  std::vector<int32_t> eos_token_ids;
  // For stop strings and texts; may be null. Ids that it has none of, by which a vocabulary was
  // padded, are never chosen.
  const model::Tokenizer* tokenizer = nullptr;
  int64_t weight_version = 0;
  std::vector<std::string> Validate() const;
};

struct Completion {
  uint64_t prompt_id = 0;
  int sample = 0;
  std::vector<int32_t> tokens;   // the response; an EOS that was chosen is its last
  std::vector<float> log_probs;  // of tokens, see LogProbsMode; empty without calculate_log_probs
  FinishReason finish = FinishReason::kLength;
  std::vector<VersionSpan> spans;     // which version chose which tokens
  std::vector<TokenRange> given;      // tokens that none chose, and
  std::string tool_memory;            // both as Request::so_far had them
  int64_t weight_version = 0;         // that chose the first token: the oldest it depends on
  int64_t newest_weight_version = 0;  // that chose the last
  std::optional<std::string> text;    // with a tokenizer; ends before a stop string
  Status error;                       // of this request alone; ok but with FinishReason::kError
  // When asked for: log p(prompt[i + 1]), raw, and the logits [prompt, vocabulary] fp32 on the
  // host.
  std::vector<float> prompt_log_probs;
  at::Tensor prompt_logits;
  // Of `tokens`, and of prompt[1], ...: SamplingParams::likeliest at each place.
  std::vector<std::vector<ScoredToken>> likeliest, prompt_likeliest;
};

// What there is of a response before it is whole. prompt_* are whole once a token was chosen.
struct SampleView {
  std::span<const int32_t> tokens;
  std::span<const float> log_probs, prompt_log_probs;
  std::span<const std::vector<ScoredToken>> likeliest, prompt_likeliest;
};

struct EngineStats {
  int64_t steps = 0;
  int64_t replayed_steps = 0;     // of these, up to the hidden states by a recording
  int64_t recordings = 0;         // made
  int64_t computed_tokens = 0;    // of prompts and responses, those computed again included
  int64_t recomputed_tokens = 0;  // of these, again after a preemption or under new weights
  int64_t generated_tokens = 0;
  int64_t found_tokens = 0;  // of prompts, shared or from the prefix cache
  int64_t preemptions = 0;
  int64_t most_running = 0;  // sequences in one step
  int64_t running = 0;       // sequences that hold blocks now
  int64_t waiting = 0;       // those that do not yet
  int64_t held_blocks = 0;   // now; a block that only the prefix cache has is free
  int64_t num_blocks = 0;
  int64_t most_blocks = 0;  // held at a time
  int64_t cache_bytes = 0;
  double forward_seconds = 0;
  double sampling_seconds = 0;
};

class Engine {
 public:
  // Throws Error(kConfig) on what Validate would list. `tp` is the group that `model` is split
  // over.
  Engine(model::Decoder& model, parallel::ProcessGroup& tp, const EngineOptions& options);
  ~Engine();

  // Why a request of so many tokens can never be served; ok when it can.
  Status CheckLengths(int64_t prompt, int64_t response) const;
  // Queues a request. One that cannot be served comes back from the next Step() with its error, one
  // whose response is whole already as it is.
  void Add(Request request);
  // One forward for as many sequences as fit; returns those that ended. Throws Error(kUnavailable)
  // while the engine is invalid or its cache released.
  std::vector<Completion> Step();
  bool idle() const;  // nothing queued, running or to be returned
  // The response so far of a request that has not come back; nothing where there is none such.
  std::optional<Partial> SoFar(uint64_t prompt_id, int sample) const;
  // The same without copying it: good until the engine is asked for anything else.
  std::optional<SampleView> Look(uint64_t prompt_id, int sample) const;
  // Takes such a request out of the engine. Added again with this as Request::so_far, here or in
  // another engine, the response is the one that it would have become.
  std::optional<Partial> Take(uint64_t prompt_id, int sample);
  // Nobody waits for it any more: it is taken out, also where it has ended and has not come back.
  void Forget(uint64_t prompt_id, int sample);
  // Adds all and steps until idle. In the order of `requests`.
  std::vector<Completion> Generate(std::vector<Request> requests);

  // The weights are complete and are those of `version`, which never decreases. What is running
  // keeps its tokens. With recompute_kv nothing that other weights computed is used again, and it
  // is computed anew; without, a sequence that has chosen a token keeps its keys and values, so
  // that its later tokens depend on what other weights computed of the earlier ones. No other
  // sequence ever uses those.
  void SetWeightVersion(int64_t version);
  int64_t weight_version() const { return version_; }
  // The weights are not to be used, for `reason`, until the next SetWeightVersion.
  void Invalidate(std::string reason);

  // Gives the cache's memory back until RestoreCache(); what is running is computed anew.
  void ReleaseCache();
  void RestoreCache();

  EngineStats stats() const;
  const EngineOptions& options() const { return options_; }

 private:
  void RequireReady() const;
  Sequence* Find(uint64_t prompt_id, int sample) const;
  Completion Finish(Sequence* sequence, FinishReason reason, Status error);
  void Append(StepOutput& output);
  std::optional<FinishReason> EndOf(const Sequence& sequence) const;

  model::Decoder& model_;
  EngineOptions options_;
  int64_t version_;
  std::string invalid_;  // the reason; empty: valid
  KvGroups groups_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<DecodeGraphs> graphs_;  // null with enforce_eager
  const OutputSampler sampler_;
  int64_t arrivals_ = 0;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;  // by arrival
  PromptLogits prompt_logits_;
  std::vector<Completion> ready_;  // to be returned by the next Step
  EngineStats stats_;
};

}  // namespace keel::rollout
