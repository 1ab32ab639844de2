// BackendGroup: what process groups over a c10d::Backend have in common: how each operation is
// asked of it, and how a failure is named.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// What an operation says of itself when it fails.
struct WhereInGroup {
  std::string group;
  int rank;  // global
  std::chrono::milliseconds deadline;
  const std::atomic<int64_t>* step;
  const std::atomic<bool>* given_up = nullptr;  // of a link group: see link_group.h

  WhereInGroup(const GroupOptions& options, int global_rank)
      : group(options.name), rank(global_rank), deadline(options.deadline), step(options.step) {}
  bool IsGivenUp() const { return given_up != nullptr && given_up->load(); }
  // kDeadlineExceeded when `cause`, of a backend, says that time was up, else kUnavailable.
  Status Failure(std::string_view operation, std::string_view cause) const;
  // kExhausted where this process had no memory or no thread for it; else as above.
  Status Failure(std::string_view operation, const std::exception& error) const;
  [[noreturn]] void Rethrow(std::string_view operation, const std::exception& error) const;

 private:
  std::string At() const;  // " step 3"
};

// For how long a backend is to wait where `left` is left, or has been over for some time already.
// Never 0, which it takes for no limit at all.
std::chrono::milliseconds LimitOf(std::chrono::steady_clock::duration left);

// This rank's place in options.ranks. kInternal when it is in none.
int RankInGroup(const GroupOptions& options, int global_rank);

class BackendGroup : public ProcessGroup {
 public:
  int rank() const override { return backend_.getRank(); }
  int size() const override { return backend_.getSize(); }
  const std::string& name() const override { return where_.group; }

  std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>& out_sizes,
                                      const std::vector<int64_t>& in_sizes) override;
  void Broadcast(at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) override;
  std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) override;
  void Barrier() override;

 protected:
  static constexpr int kAllRanks = -1;

  // `backend` lives as long as this is used.
  BackendGroup(c10d::Backend& backend, WhereInGroup where)
      : backend_(backend), where_(std::move(where)) {}

  // Begins an operation and watches it. Throws what says where it failed.
  std::unique_ptr<Work> Start(const char* operation, int peer,
                              c10::function_ref<c10::intrusive_ptr<c10d::Work>()> begin);
  // Returns what waits for an operation that has begun: of all ranks, or a message from or to
  // `peer`.
  virtual std::unique_ptr<Work> Watch(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                                      int peer) = 0;
  const WhereInGroup& where() const { return where_; }

 private:
  c10d::Backend& backend_;
  const WhereInGroup where_;
};

}  // namespace keel::parallel
