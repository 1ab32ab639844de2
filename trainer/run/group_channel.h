// The checkpoint's PeerChannel over a process group of the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "parallel/groups/process_group.h"

namespace keel::trainer {

// `group` holds all ranks of the job in order, carries host memory (gloo), must outlive this, and
// is used by nobody else meanwhile. Its own deadline bounds each wait.
class GroupChannel final : public checkpoint::PeerChannel {
 public:
  explicit GroupChannel(parallel::ProcessGroup& group);

  int rank() const override { return group_.rank(); }
  int world() const override { return group_.size(); }
  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  std::chrono::milliseconds deadline) override;

 private:
  parallel::ProcessGroup& group_;
  // By peer: messages so far. Their number is their tag, so that none is taken for another.
  std::vector<int> sent_, received_;
};

}  // namespace keel::trainer
