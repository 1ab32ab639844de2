// BatchShare: what a rank holds of a step's batch: the outline of all, and the tokens of those
// responses that its data-parallel rank learns from in any of the step's passes.
//
// Rank 0 has the whole batch, which it filters, judges, dumps and makes advantages of; the others
// have no more than they learn from. Values of tokens go out the same way: rank 0 has them of all
// tokens, and each rank gets those of its own, [H], one held response after the other. One a step;
// used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/groups/context.h"
#include "trainer/rl/learn/batch_outline.h"

namespace keel::trainer::rl {

class BatchShare {
 public:
  // All mini-batches of the step: of every pass, update and epoch of its models.
  using Passes = std::function<std::vector<MiniBatch>(const BatchOutline&)>;

  // Gives each rank its share of rank 0's `whole`; that of others is not looked at. Collective over
  // all ranks.
  static BatchShare HandOut(parallel::ParallelContext& context, at::Device device,
                            const RolloutBatch& whole, const Passes& passes);
  // All of a batch.
  static BatchShare All(const RolloutBatch& whole);

  const BatchOutline& outline() const { return outline_; }
  const std::vector<int64_t>& boundaries() const { return boundaries_; }  // [S + 1], of all tokens
  int64_t tokens() const { return boundaries_.back(); }                   // response tokens of all
  int64_t held_tokens() const { return std::ssize(mask_); }               // H

  struct Held {
    std::span<const int32_t> prompt, tokens;
    std::span<const uint8_t> mask;  // of `tokens`: to learn from
    int64_t begin = 0;              // of `tokens` among those of all responses
    int64_t at = 0;                 // and among those held
  };
  // Throws Error(kInternal) for a response that is not held: no pass was to look at it.
  Held Of(int64_t response) const;

  // Makes of each column of rank 0, [N] or empty, that of this rank's tokens: [H], or empty.
  // Collective over all ranks.
  void HandOutValues(parallel::ParallelContext& context, at::Device device,
                     std::span<std::vector<float>* const> columns) const;
  // Takes up what of rank 0's `whole` is to be learnt from. Collective over all ranks.
  void HandOutMask(parallel::ParallelContext& context, at::Device device,
                   const RolloutBatch& whole);

 private:
  BatchShare(BatchOutline outline, std::vector<int64_t> held);
  std::string IdsOf(const RolloutBatch& whole, std::span<const int64_t> responses) const;
  void TakeIds(std::string_view bytes);
  template <typename T>
  void AppendTokens(std::span<const T> values, std::span<const int64_t> responses,
                    std::string* bytes) const;

  BatchOutline outline_;
  std::vector<int64_t> boundaries_;           // [S + 1] over all response tokens
  std::vector<std::vector<int64_t>> shares_;  // on rank 0: what each data-parallel rank holds
  std::vector<int64_t> held_;                 // responses, ascending
  std::vector<int64_t> ids_at_, tokens_at_;   // [S]: where ids and tokens begin, -1: not held
  std::vector<int32_t> ids_;                  // prompt and response of each that is held
  std::vector<uint8_t> mask_;                 // [H]
};

}  // namespace keel::trainer::rl
