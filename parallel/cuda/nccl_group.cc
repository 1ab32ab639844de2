#include "parallel/cuda/nccl_group.h"

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "parallel/process_group_backend.h"
#include "parallel/store_impl.h"

namespace keel::parallel {

namespace {

// Wait orders the current stream behind the operation; the host does not block.
class NcclWork final : public Work {
 public:
  NcclWork(c10::intrusive_ptr<c10d::Work> work, const WhereInGroup& where, const char* operation)
      : work_(std::move(work)), where_(where), operation_(operation) {}
  void Wait() override {
    try {
      work_->wait();
    } catch (const std::exception& error) {
      where_.Rethrow(operation_, error);
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  const WhereInGroup& where_;
  const char* operation_;
};

class NcclGroup final : public BackendGroup {
 public:
  NcclGroup(c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl, WhereInGroup where)
      : BackendGroup(*nccl, std::move(where)), nccl_(std::move(nccl)) {}

  void Barrier() override {
    BackendGroup::Barrier();
    c10::cuda::getCurrentCUDAStream().synchronize();
  }
  // All ranks, before the process ends: NCCL must not be torn down in a static destructor.
  void Shutdown() override { nccl_->shutdown(); }

 private:
  std::unique_ptr<Work> Watch(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                              int) override {
    return std::make_unique<NcclWork>(std::move(work), where(), operation);
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options) {
  const int rank = RankInGroup(options, global_rank);
  WhereInGroup where(options, global_rank);
  try {
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = options.deadline;
    nccl_options->group_name = options.name;
    const Store scoped =
        store.WithPrefix(fmt::format("group/{}/{}", options.name, options.ranks.front()));
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        scoped.impl()->store, rank, static_cast<int>(options.ranks.size()), nccl_options);
    nccl->setBoundDeviceId(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)));
    return std::make_unique<NcclGroup>(std::move(nccl), std::move(where));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    where.Rethrow("connecting", error);
  }
}

}  // namespace keel::parallel
