// Scheduler: which tokens of which sequences the next forward computes (continuous batching, Yu et
// al. 2022; chunked prefill, Agrawal et al. 2024).
//
// First come, first served: running sequences in the order of arrival, then waiting ones. When
// blocks run out the youngest running sequence gives its own back and is computed again later
// (preemption by recompute); since Add() takes only what fits alone, the oldest always ends.
// Samples of a prompt that is being computed wait for it and then share its blocks; they join
// together with it, the one exception to the order. Sequences belong to the caller. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "rollout/sequence.h"

namespace keel::rollout {

struct SchedulerOptions {
  int64_t max_num_batched_tokens = 8192;  // in one forward
  int64_t max_num_seqs = 256;             // running at a time
  bool enable_chunked_prefill = true;     // false: a prompt is computed in one forward
  // A text that grows longer than this is computed anew, since its positions then turn otherwise
  // (longrope); 0: never. Of the model, not a user's choice.
  int64_t turns_at = 0;
  std::vector<std::string> Validate() const;
};

// Tokens [begin, begin + count) of a sequence. After the last one's logits are known, the sequence
// and its followers each choose their next token.
struct ScheduledTokens {
  Sequence* sequence = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
  bool sample = false;
  std::vector<Sequence*> followers;
};

struct StepPlan {
  std::vector<BlockCopy> copies;  // before the forward, in order
  std::vector<ScheduledTokens> work;
  int64_t tokens = 0;                   // of all work
  std::vector<BlockCopy> state_copies;  // of slots, after the forward
};

class Scheduler {
 public:
  // Throws Error(kConfig) on what Validate would list. `blocks` must outlive this.
  Scheduler(const SchedulerOptions& options, BlockManager& blocks);

  // Why a request of so many tokens can never be served; ok when it can.
  Status CheckLengths(int64_t prompt, int64_t max_tokens) const;
  // Appends to the queue. CheckLengths() must have been ok.
  void Add(Sequence* sequence);
  // The next forward. Its tokens count as computed from here on.
  StepPlan Schedule();
  // Publishes what the plan's forward computed, and gives back what no later token sees. Before
  // tokens are appended.
  void Computed(const StepPlan& plan);
  // The sequence has ended, or is withdrawn; its blocks are given back.
  void Remove(Sequence* sequence);
  // All running sequences give back their blocks and will be computed again.
  void PreemptAll();
  // As PreemptAll, but for sequences that have chosen a token: these keep what they have computed,
  // for themselves alone.
  void PreemptUnbegun();

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t preemptions() const { return preemptions_; }
  int64_t prefix_hits() const { return prefix_hits_; }  // tokens found instead of computed
  int64_t recomputed() const { return recomputed_; }    // tokens planned again after a preemption

 private:
  void Preempt(Sequence* sequence);
  int32_t KindOf(const Sequence& sequence) const {
    return options_.turns_at > 0 && sequence.size() > options_.turns_at ? 1 : 0;
  }
  void PreemptOutgrown();
  bool MayHalve(int64_t count, bool alone) const;
  bool PlanRunning(Sequence* sequence, StepPlan* plan);
  enum class Admission { kAdmitted, kSkipped, kNoRoom };
  Admission Admit(Sequence* sequence, StepPlan* plan);
  void Plan(Sequence* sequence, int64_t count, StepPlan* plan);
  void JoinFollowers(StepPlan* plan);
  bool PromptIsBeingComputed(const Sequence& sequence) const;

  SchedulerOptions options_;
  BlockManager& blocks_;
  std::map<int64_t, Sequence*> waiting_;  // by arrival
  std::map<int64_t, Sequence*> running_;
  int64_t preemptions_ = 0;
  int64_t prefix_hits_ = 0;
  int64_t recomputed_ = 0;
};

}  // namespace keel::rollout
