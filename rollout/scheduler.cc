#include "rollout/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::rollout {

namespace {

bool SamePrompt(const Sequence& a, const Sequence& b) {
  return a.request.prompt_id == b.request.prompt_id && a.request.prompt == b.request.prompt;
}

// What waits only for the logits behind a prompt may share it.
bool MayFollow(const Sequence& s) {
  return s.generated() == 0 && !s.request.sampling.wants_prompt();
}

}  // namespace

std::vector<std::string> SchedulerOptions::Validate() const {
  std::vector<std::string> problems;
  if (max_num_batched_tokens < 1)
    problems.push_back(
        fmt::format("max_num_batched_tokens is {}, expected at least 1", max_num_batched_tokens));
  if (max_num_seqs < 1)
    problems.push_back(fmt::format("max_num_seqs is {}, expected at least 1", max_num_seqs));
  return problems;
}

Scheduler::Scheduler(const SchedulerOptions& options, BlockManager& blocks)
    : options_(options), blocks_(blocks) {
  const auto problems = options.Validate();
  if (!problems.empty())
    throw Error(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
}

Status Scheduler::CheckLengths(int64_t prompt, int64_t max_tokens) const {
  // The last token of a response is chosen and never computed.
  const int64_t most = prompt + std::max<int64_t>(0, std::min(max_tokens, int64_t{1} << 40) - 1);
  // In parts, if need be token by token, a window's blocks are enough for its layers.
  const int64_t needed = blocks_.MostBlocks(most, options_.enable_chunked_prefill ? 1 : most);
  if (needed > blocks_.num_blocks()) {
    return {StatusCode::kInvalidData,
            fmt::format("a prompt of {} tokens and max_tokens {} need {} blocks of {} tokens, the "
                        "KV cache has {}: enlarge it, or shorten the request",
                        prompt, max_tokens, needed, blocks_.block_size(), blocks_.num_blocks())};
  }
  if (!options_.enable_chunked_prefill && most > options_.max_num_batched_tokens) {
    return {StatusCode::kInvalidData,
            fmt::format("a prompt of {} tokens and max_tokens {} exceed max_num_batched_tokens {}: "
                        "raise it, or set enable_chunked_prefill",
                        prompt, max_tokens, options_.max_num_batched_tokens)};
  }
  return {};
}

void Scheduler::Add(Sequence* sequence) { waiting_.emplace(sequence->arrival, sequence); }

void Scheduler::Preempt(Sequence* sequence) {
  blocks_.Release(&sequence->table);
  sequence->once_computed = std::max(sequence->once_computed, sequence->computed);
  sequence->computed = 0;
  ++sequence->preempted;
  ++preemptions_;
  running_.erase(sequence->arrival);
  waiting_.emplace(sequence->arrival, sequence);
}

void Scheduler::PreemptAll() {
  while (!running_.empty()) Preempt(running_.rbegin()->second);
}

// Samples of a prompt share what is computed of it until each has its first token. So what one that
// has a token keeps goes to nobody, and one that has none begins with a single version.
void Scheduler::PreemptUnbegun() {
  std::vector<Sequence*> unbegun;
  for (const auto& [arrival, sequence] : running_) {
    if (sequence->generated() == 0) {
      unbegun.push_back(sequence);
    } else {
      sequence->table.mixed = true;
    }
  }
  for (Sequence* sequence : unbegun) Preempt(sequence);
}

void Scheduler::PreemptOutgrown() {
  std::vector<Sequence*> outgrown;
  for (const auto& [arrival, sequence] : running_)
    if (sequence->table.kind != KindOf(*sequence)) outgrown.push_back(sequence);
  for (Sequence* sequence : outgrown) Preempt(sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  blocks_.Release(&sequence->table);
  running_.erase(sequence->arrival);
  waiting_.erase(sequence->arrival);
}

void Scheduler::Plan(Sequence* sequence, int64_t count, StepPlan* plan) {
  const int64_t begin = sequence->computed;
  const bool last = begin + count == sequence->size();
  plan->work.push_back(
      {sequence, begin, count, last && sequence->request.sampling.max_tokens > 0, {}});
  plan->tokens += count;
  recomputed_ += std::clamp<int64_t>(sequence->once_computed - begin, 0, count);
  sequence->computed += count;
  sequence->in_step = true;
}

// What windows pass goes back to the pool between one part of a prompt and the next, so smaller
// parts need less. Parts of less than a block are made for whoever is alone, so that he ends.
bool Scheduler::MayHalve(int64_t count, bool alone) const {
  return options_.enable_chunked_prefill && blocks_.has_windows() &&
         count > (alone ? 1 : blocks_.block_size());
}

// False when it had to give up its own blocks.
bool Scheduler::PlanRunning(Sequence* sequence, StepPlan* plan) {
  int64_t count = std::min(sequence->size() - sequence->computed,
                           options_.max_num_batched_tokens - plan->tokens);
  while (!blocks_.Reserve(sequence->computed, sequence->computed + count, &sequence->table,
                          &plan->copies)) {
    if (MayHalve(count, running_.size() == 1)) {
      count = (count + 1) / 2;
      continue;
    }
    Sequence* youngest = running_.rbegin()->second;
    Preempt(youngest);
    if (youngest == sequence) return false;
  }
  Plan(sequence, count, plan);
  return true;
}

bool Scheduler::PromptIsBeingComputed(const Sequence& sequence) const {
  if (!MayFollow(sequence)) return false;
  for (const auto& [arrival, other] : running_) {
    // computed already counts what this step plans: a prompt that is complete has followers of
    // this step alone.
    if (other->generated() == 0 && (other->computed < other->prompt_size || other->in_step) &&
        other != &sequence && SamePrompt(*other, sequence))
      return true;
  }
  return false;
}

Scheduler::Admission Scheduler::Admit(Sequence* sequence, StepPlan* plan) {
  if (PromptIsBeingComputed(*sequence)) return Admission::kSkipped;
  // The last token is computed even when all is found, for its logits.
  const int64_t limit = sequence->request.sampling.wants_prompt() ? 0 : sequence->size() - 1;
  sequence->table.kind = KindOf(*sequence);
  const int64_t found = blocks_.AcquirePrefix(sequence->tokens, limit, &sequence->table);
  const int64_t left = sequence->size() - found;
  const int64_t budget = options_.max_num_batched_tokens - plan->tokens;
  int64_t count = std::min(left, budget);
  // Running sequences keep a block of each group to grow into, or the newcomer would soon be sent
  // away.
  const int64_t spare = running() * blocks_.groups();
  const auto room = [&] {
    return blocks_.Needed(found, found + count, sequence->table) + spare <= blocks_.available();
  };
  while (count > 0 && !room() && MayHalve(count, running_.empty())) count = (count + 1) / 2;
  if (count < 1 || (count < left && !options_.enable_chunked_prefill) || !room() ||
      !blocks_.Reserve(found, found + count, &sequence->table, &plan->copies)) {
    blocks_.Release(&sequence->table);
    return Admission::kNoRoom;
  }
  sequence->computed = found;
  prefix_hits_ += found;
  running_.emplace(sequence->arrival, sequence);
  Plan(sequence, count, plan);
  return Admission::kAdmitted;
}

// Waiting samples of a prompt that this step completes share its blocks and its logits.
void Scheduler::JoinFollowers(StepPlan* plan) {
  for (ScheduledTokens& work : plan->work) {
    if (!work.sample || !MayFollow(*work.sequence)) continue;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      Sequence* other = it->second;
      if (running() >= options_.max_num_seqs || !blocks_.has_slot()) return;
      if (!MayFollow(*other) || !SamePrompt(*work.sequence, *other)) {
        ++it;
        continue;
      }
      it = waiting_.erase(it);
      running_.emplace(other->arrival, other);
      blocks_.Fork(work.sequence->table, &other->table);
      if (blocks_.has_states())
        plan->state_copies.push_back({work.sequence->table.state, other->table.state});
      other->computed = other->prompt_size;
      prefix_hits_ += other->prompt_size;
      work.followers.push_back(other);
    }
  }
}

StepPlan Scheduler::Schedule() {
  StepPlan plan;
  if (options_.turns_at > 0) PreemptOutgrown();
  // 1. Running sequences, oldest first. Preemption takes from the end of the map only.
  for (auto it = running_.begin(); it != running_.end();) {
    if (plan.tokens >= options_.max_num_batched_tokens) break;
    Sequence* sequence = it->second;
    if (!PlanRunning(sequence, &plan)) break;
    it = running_.upper_bound(sequence->arrival);
  }
  // 2. Waiting ones, oldest first; nobody passes one for which there is no room.
  for (auto it = waiting_.begin(); it != waiting_.end() && running() < options_.max_num_seqs &&
                                   plan.tokens < options_.max_num_batched_tokens;) {
    Sequence* sequence = it->second;
    const Admission admission = Admit(sequence, &plan);
    if (admission == Admission::kNoRoom) break;
    it = admission == Admission::kAdmitted ? waiting_.erase(it) : std::next(it);
  }
  // 3. Samples that were waiting for a prompt.
  JoinFollowers(&plan);
  for (const ScheduledTokens& work : plan.work) work.sequence->in_step = false;
  return plan;
}

void Scheduler::Computed(const StepPlan& plan) {
  for (const ScheduledTokens& work : plan.work) {
    Sequence* s = work.sequence;
    blocks_.Publish(s->tokens, s->computed, &s->table);
    blocks_.GiveBackPassed(s->computed, &s->table);
    for (Sequence* follower : work.followers)
      blocks_.GiveBackPassed(follower->computed, &follower->table);
  }
}

}  // namespace keel::rollout
