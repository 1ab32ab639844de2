// ParallelContext: the layout, this rank's place in it, and its process groups along the axes.
//
// Made once a process and passed by reference; there are no global groups. Outlives every layer,
// buffer and runner that it is given to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/span_recorder.h"
#include "parallel/groups/process_group.h"
#include "parallel/layout.h"
#include "parallel/store/store.h"

namespace keel::parallel {

struct ContextOptions {
  bool cuda = false;
  bool by_host = false;  // see GroupOptions
  int device_index = -1;
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer
  std::string local_address = "127.0.0.1";      // see LocalAddressTowards
};

class ParallelContext {
 public:
  // Collective over all ranks of the layout.
  ParallelContext(const Layout& layout, int rank, const Store& store,
                  const ContextOptions& options);

  const Layout& layout() const { return layout_; }
  int rank() const { return rank_; }
  Seat seat() const { return {layout_, rank_}; }
  int tp_rank() const { return layout_.CoordOf(rank_, Axis::kTp); }
  int dp_rank() const { return layout_.CoordOf(rank_, Axis::kDp); }
  int pp_rank() const { return layout_.CoordOf(rank_, Axis::kPp); }

  ProcessGroup& world() { return *world_; }
  // The ranks that differ in one axis alone; that of the pipeline has two groups of its own.
  ProcessGroup& group(Axis axis);
  ProcessGroup& tp() { return group(Axis::kTp); }
  ProcessGroup& dp() { return group(Axis::kDp); }
  // Point-to-point along the pipeline, one group a direction, apart from collectives.
  ProcessGroup& pp_forward() { return *pp_forward_; }
  ProcessGroup& pp_backward() { return *pp_backward_; }
  // First and last stage; null on inner stages and without a pipeline.
  ProcessGroup* tied_embedding() { return tied_embedding_.get(); }
  const Store& store() const { return store_; }
  const ContextOptions& options() const { return options_; }

  // Where the work of this rank is recorded; null: nowhere. Not set while any goes on.
  SpanRecorder* spans() const { return spans_; }
  void set_spans(SpanRecorder* spans) { spans_ = spans; }

  // Shown in the errors of every group.
  void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }

  // "world 4 = tp 2 x dp 1 x pp 2; tp {0 1} {2 3}; …"
  std::string Overview() const;
  // Ends the groups in order. Call before the store goes; the destructor only drops them.
  void Shutdown();

 private:
  Layout layout_;
  int rank_;
  Store store_;
  ContextOptions options_;
  std::atomic<int64_t> step_{-1};
  SpanRecorder* spans_ = nullptr;
  std::unique_ptr<ProcessGroup> world_;
  std::map<Axis, std::unique_ptr<ProcessGroup>> groups_;  // of the axes without the pipeline's
  std::unique_ptr<ProcessGroup> pp_forward_, pp_backward_, tied_embedding_;
};

// The address of this host from which packets to `host` leave: "127.0.0.1" for a local one.
std::string LocalAddressTowards(const std::string& host);

}  // namespace keel::parallel
