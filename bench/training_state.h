// TrainingState: what a rank of the checkpoint benchmark trains, and the step that changes it.
//
// The peers' workers (bench/peers/checkpoint_state.py) have the same tensors, products and update.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/state_options.h"
#include "checkpoint/base/role_state.h"
#include "common/hash.h"

namespace keel::bench {

// Which part of a matrix a rank holds. kRows and kColumns are equal parts; with kUneven the first
// rank has half as many rows as it has otherwise.
enum class Cut { kRows, kColumns, kUneven };

class TrainingState {
 public:
  TrainingState(const StateOptions& options, Cut cut, int rank, int ranks);

  // Views of this state's memory, valid as long as it lives.
  checkpoint::RoleState Role() const;
  int64_t bytes() const;

  // AdamW over all of it, in place, matrix by matrix; `before_write` is called with each tensor
  // that is overwritten next.
  void Update(const std::function<void(const at::Tensor&)>& before_write);

  // One per tensor, in the order of Role().
  std::vector<Digest128> Digests() const;

 private:
  struct Matrix {
    std::string name;
    std::vector<int64_t> shape, offset;  // whole; of this rank's part
    at::Tensor weight, master, exp_avg, exp_avg_sq;
  };
  void AddMatrix(const std::string& name, std::vector<int64_t> shape, std::vector<int64_t> offset,
                 std::vector<int64_t> size);

  std::vector<Matrix> matrices_;
  at::Tensor gradient_, step_;
  bool optimizer_ = true;
};

}  // namespace keel::bench
