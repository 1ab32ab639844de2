// TokenValues: what each rank found of its own responses' tokens, put together on rank 0.
//
// A value is found on the last stage, by the first tensor-parallel rank of the data-parallel rank
// whose response it is; that rank alone adds it. It goes out once, with the spans it is of, to rank
// 0, which alone looks at the whole batch. One a pass; used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/groups/context.h"
#include "trainer/rl/learn/micro_batches.h"

namespace keel::trainer::rl {

class TokenValues {
 public:
  // `rows` [T]: of the micro-batch's rows. They stay on their device until Bytes: a host that read
  // them here would wait for each micro-batch before it gives the device the next one.
  void Add(const RlMicroBatch& micro, const at::Tensor& rows);

  // [tokens] of all ranks, on rank 0; 0 where none added any. Nothing on the others. Collective
  // over all ranks.
  std::vector<float> OnRank0(parallel::ParallelContext& context, at::Device device,
                             int64_t tokens) const;

  // Runs of tokens: uint64 count, then {int64 first, int64 size} for each, then their floats, this
  // machine's way: both ends are the same program. "" when there are none.
  std::string Bytes() const;
  // Into `values`. kInternal for bytes that are not of that form, or of other tokens than these.
  static Status Place(std::string_view bytes, std::span<float> values);

 private:
  struct Run {
    int64_t first = 0;
    int64_t size = 0;
  };
  std::vector<Run> runs_;
  std::vector<int64_t> places_;  // of each run's first, in `added_` joined
  std::vector<at::Tensor> added_;
  int64_t rows_ = 0;  // of `added_`
};

}  // namespace keel::trainer::rl
