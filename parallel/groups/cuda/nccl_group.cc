#include "parallel/groups/cuda/nccl_group.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <torch/csrc/cuda/nccl.h>

#include <cstdlib>
#include <future>
#include <thread>
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

class Communicators final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  // On this thread; ProcessGroupNCCL::abort does it on another one, where AbortNcclTogether has no
  // hold of it.
  void AbortHere() noexcept {
    told_ = true;
    try {
      abortComms("an operation of the process failed");
    } catch (const std::exception&) {
      // There is nothing left to end.
    }
    ended_ = true;
  }
  bool told() const { return told_; }    // to end, by AbortHere
  bool ended() const { return ended_; }  // and it has

 private:
  std::atomic<bool> told_ = false, ended_ = false;
};

using Nccl = c10::intrusive_ptr<Communicators>;

class NcclGroup final : public StreamGroup {
 public:
  // `own`: the watch, where it is this group's alone.
  NcclGroup(Nccl nccl, WhereInGroup where, int device, OperationWatch& watch,
            std::unique_ptr<OperationWatch> own)
      : StreamGroup(*nccl, std::move(where), watch, [nccl] { nccl->AbortHere(); }),
        device_(static_cast<c10::DeviceIndex>(device)),
        watch_(watch),
        own_watch_(std::move(own)),
        nccl_(std::move(nccl)) {}

  // Operations that are under way, because an error ended the run, would hold up the end.
  ~NcclGroup() override {
    if (!shut_down_) watch_.AbortIfBusy();
    StopWatching();
    if (shut_down_) return;
    if (!nccl_->told()) AbortNcclTogether({[nccl = nccl_] { nccl->AbortHere(); }}, device_);
    if (!nccl_->ended()) {
      (void)nccl_.release();  // what NCCL does not come back from is left to the process's end
      return;
    }
    try {
      nccl_->abort();  // its threads, else its destructor complains
    } catch (const std::exception&) {
      // There is nothing left to end.
    }
  }

  void Barrier() override {
    StreamGroup::Barrier();
    c10::cuda::getCurrentCUDAStream().synchronize();
    CheckAlive();
  }
  // All ranks, before the process ends: NCCL must not be torn down in a static destructor.
  void Shutdown() override {
    Drain();  // under the watch: NCCL's own end waits without a bound
    StopWatching();
    shut_down_ = true;
    nccl_->shutdown();
  }

 private:
  // Without the tensors: what they hold is given back when the host lets go of the operation.
  c10::intrusive_ptr<c10d::Work> StateOf(
      const c10::intrusive_ptr<c10d::Work>& work) const override {
    using NcclWork = c10d::ProcessGroupNCCL::WorkNCCL;
    const auto* const of_nccl = dynamic_cast<const NcclWork*>(work.get());
    if (of_nccl == nullptr) return work;
    return c10::make_intrusive<NcclWork>(*of_nccl);
  }

  const c10::DeviceIndex device_;
  OperationWatch& watch_;
  std::unique_ptr<OperationWatch> own_watch_;  // goes when nothing is watched any more
  Nccl nccl_;
  bool shut_down_ = false;
};

}  // namespace

bool AbortNcclTogether(const OperationWatch::Aborts& aborts, c10::DeviceIndex device) {
  const auto over = std::make_shared<std::promise<void>>();
  std::future<void> end = over->get_future();
  const auto work = [over, aborts, device] {
    try {
      c10::cuda::set_device(device);
      // The end of a communicator waits for the device, which an operation of another one holds:
      // within a group of calls all are told before any is waited for (NCCL 2.22 and later).
      const torch::cuda::nccl::AutoNcclGroup group;
      for (const std::function<void()>& abort : aborts) abort();
    } catch (const std::exception&) {
      // There is nothing left to end.
    }
    over->set_value();
  };
  try {
    std::thread(work).detach();
  } catch (const std::exception&) {
    work();  // there is no thread to be had: without a bound
  }
  return end.wait_for(kNcclAbortPatience) == std::future_status::ready;
}

std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options,
                                            const std::atomic<bool>* given_up,
                                            OperationWatch& watch) {
  const int rank = RankInGroup(options, global_rank);
  WhereInGroup where(options, global_rank);
  where.given_up = given_up;
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
    auto nccl = c10::make_intrusive<Communicators>(
        scoped.impl()->store, rank, static_cast<int>(options.ranks.size()), nccl_options);
    nccl->setBoundDeviceId(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)));
    std::unique_ptr<OperationWatch> own;
    const auto device = static_cast<c10::DeviceIndex>(options.device_index);
    if (options.is_link) {
      own = std::make_unique<OperationWatch>();
      own->set_at_start([device] { c10::cuda::set_device(device); });
      own->set_abort_together([device](const OperationWatch::Aborts& aborts) {
        AbortNcclTogether(aborts, device);  // else it is left where it is
      });
    }
    OperationWatch& watched_by = own != nullptr ? *own : watch;
    auto group = std::make_unique<NcclGroup>(std::move(nccl), std::move(where),
                                             options.device_index, watched_by, std::move(own));
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
