// ProcessGroup: the ranks of one axis, and the collectives over them.
//
// A thin wrapper over c10d (gloo on CPU, NCCL on CUDA) that gives every operation a name, a
// deadline and an error with operation, group, rank and step. Only process_group*.cc sees c10d. One
// issuing thread per group. Every method but rank/size/name is collective over the group, or
// between two ranks for point-to-point. Throws keel::Error(kUnavailable) when a peer is lost,
// kDeadlineExceeded when the deadline passes.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/store/store.h"

namespace keel::parallel {

enum class ReduceOp { kSum, kMax, kMin };

// An operation under way. The tensors given to it must stay alive and untouched until Wait returns.
class Work {
 public:
  virtual ~Work() = default;
  virtual void Wait() = 0;  // throws as the blocking calls do
};

struct GroupOptions {
  std::string name;        // "tp", "dp", "pp_fwd": part of the store's keys, and of messages
  std::vector<int> ranks;  // global ranks, in group order; must contain this rank
  std::chrono::milliseconds deadline{120'000};
  bool cuda = false;                        // NCCL through the keel_cuda module
  bool by_host = false;                     // with cuda: see host_staged_group.h
  int device_index = -1;                    // CUDA device
  std::string local_address = "127.0.0.1";  // of this host, as its peers reach it (gloo)
  // Over gloo: two ranks connect when the one first has something for the other. Of a group in
  // which few pairs ever do; the others find out then, not when it is made, that a rank is gone.
  bool lazy = false;
  // Over NCCL: its failure is not that of other groups. See link_group.h.
  bool is_link = false;
  const std::atomic<int64_t>* step = nullptr;  // shown in errors; may be null
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;  // never a collective; see Shutdown

  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  // All tensors contiguous. With size() == 1 each is a copy or nothing.
  virtual std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) = 0;  // in place
  // out: size() * in.numel() elements, in's dtype; group order.
  virtual std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) = 0;
  // in: size() * out.numel() elements. Sum.
  virtual std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) = 0;
  // in: for each peer in group order `in_sizes` elements; out: from each peer `out_sizes` elements.
  // Sizes may be 0; peers agree on them. in and out of one dtype.
  virtual std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                              const std::vector<int64_t>& out_sizes,
                                              const std::vector<int64_t>& in_sizes) = 0;
  virtual void Broadcast(at::Tensor& tensor, int root) = 0;
  virtual std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) = 0;
  virtual std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) = 0;
  virtual void Barrier() = 0;
  // Throws what operations of this group have failed of, where a device waits for them and not the
  // host: to be asked once the host has read what one of them brought, before it believes it.
  virtual void CheckAlive() const {}
  // Orderly end; call before the store goes. Not a collective.
  virtual void Shutdown() = 0;

  void AllReduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    AllReduceAsync(tensor, op)->Wait();
  }
  void AllGather(at::Tensor& out, const at::Tensor& in) { AllGatherAsync(out, in)->Wait(); }
  void ReduceScatter(at::Tensor& out, const at::Tensor& in) { ReduceScatterAsync(out, in)->Wait(); }
};

// Collective over options.ranks: every one of them calls it with the same name.
std::unique_ptr<ProcessGroup> MakeProcessGroup(const Store& store, int global_rank,
                                               const GroupOptions& options);
// A group of this rank alone: every operation is local. Needs no store.
std::unique_ptr<ProcessGroup> MakeSingleGroup(std::string name);

}  // namespace keel::parallel
