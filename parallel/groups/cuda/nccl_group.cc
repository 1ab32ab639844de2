#include "parallel/groups/cuda/nccl_group.h"

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "parallel/groups/first_contact.h"
#include "parallel/groups/stream_group.h"
#include "parallel/store/store_impl.h"

namespace keel::parallel {

namespace {

// PyTorch's watchdog ends the process when an operation is late, without a word of what was waited
// for, and its monitor does so when the watchdog is late. Read when the first group is made.
void KeepTheProcess() {
  (void)setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  (void)setenv("TORCH_NCCL_BLOCKING_WAIT", "0", 1);
  (void)setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  (void)setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
}

using Nccl = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

class NcclGroup final : public StreamGroup {
 public:
  NcclGroup(Nccl nccl, WhereInGroup where, OperationWatch& watch)
      : StreamGroup(*nccl, std::move(where), watch, [nccl] { Abort(*nccl); }),
        nccl_(std::move(nccl)) {}

  // Operations that are under way, because an error ended the run, would hold up the end.
  ~NcclGroup() override {
    StopWatching();
    if (!shut_down_) Abort(*nccl_);
  }

  void Barrier() override {
    StreamGroup::Barrier();
    c10::cuda::getCurrentCUDAStream().synchronize();
    CheckAlive();
  }
  // All ranks, before the process ends: NCCL must not be torn down in a static destructor.
  void Shutdown() override {
    StopWatching();
    shut_down_ = true;
    nccl_->shutdown();
  }

 private:
  static void Abort(c10d::ProcessGroupNCCL& nccl) {
    try {
      nccl.abort();
    } catch (const std::exception&) {
      // There is nothing left to end.
    }
  }

  Nccl nccl_;
  bool shut_down_ = false;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options, OperationWatch& watch) {
  const int rank = RankInGroup(options, global_rank);
  WhereInGroup where(options, global_rank);
  KeepTheProcess();
  try {
    const Store scoped =
        store.WithPrefix(fmt::format("group/{}/{}", options.name, options.ranks.front()));
    // 1. NCCL's own meeting has no deadline.
    ThrowIfError(
        MeetInStore(scoped.WithPrefix("meet"), global_rank, options.ranks, options.deadline)
            .WithContext(fmt::format("connecting group {}", options.name)));
    // 2. The group. Its own patience is longer than the watch's, which names what it ends.
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = options.deadline + std::chrono::minutes(1);
    nccl_options->group_name = options.name;
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        scoped.impl()->store, rank, static_cast<int>(options.ranks.size()), nccl_options);
    nccl->setBoundDeviceId(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)));
    auto group = std::make_unique<NcclGroup>(std::move(nccl), std::move(where), watch);
    // 3. The connection for collectives is made with the first one.
    group->Barrier();
    return group;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    WhereInGroup(options, global_rank).Rethrow("connecting", error);
  }
}

}  // namespace keel::parallel
