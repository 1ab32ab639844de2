#include "parallel/cuda/nccl_group.h"

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "parallel/store_impl.h"

namespace keel::parallel {

namespace {

struct Where {
  std::string group;
  int rank;  // global
  const std::atomic<int64_t>* step;

  [[noreturn]] void Rethrow(std::string_view operation, const std::exception& error) const {
    std::string text = error.what();
    text = text.substr(0, text.find('\n'));
    const bool late =
        text.find("imeout") != std::string::npos || text.find("imed out") != std::string::npos;
    throw Error(
        late ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
        fmt::format(
            "{} in group {} on rank {}{}: {}", operation, group, rank,
            step == nullptr || step->load() < 0 ? "" : fmt::format(" step {}", step->load()),
            text));
  }
};

// Wait orders the current stream behind the operation; the host does not block.
class NcclWork final : public Work {
 public:
  NcclWork(c10::intrusive_ptr<c10d::Work> work, const Where& where, const char* operation)
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
  const Where& where_;
  const char* operation_;
};

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl, std::string name, Where where)
      : nccl_(std::move(nccl)), name_(std::move(name)), where_(std::move(where)) {}

  int rank() const override { return nccl_->getRank(); }
  int size() const override { return nccl_->getSize(); }
  const std::string& name() const override { return name_; }

  std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) override {
    return Start("all-reduce", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                         : op == ReduceOp::kMax ? c10d::ReduceOp::MAX
                                                : c10d::ReduceOp::MIN;
      return nccl_->allreduce(tensors, options);
    });
  }
  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    return Start("all-gather", [&] {
      at::Tensor flat_out = out.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      return nccl_->_allgather_base(flat_out, flat_in);
    });
  }
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    return Start("reduce-scatter", [&] {
      at::Tensor flat_out = out.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      return nccl_->_reduce_scatter_base(flat_out, flat_in);
    });
  }
  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>& out_sizes,
                                      const std::vector<int64_t>& in_sizes) override {
    return Start("all-to-all", [&] {
      at::Tensor flat_out = out.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      std::vector<int64_t> to = out_sizes;
      std::vector<int64_t> from = in_sizes;
      return nccl_->alltoall_base(flat_out, flat_in, to, from);
    });
  }

  void Broadcast(at::Tensor& tensor, int root) override {
    Start("broadcast", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return nccl_->broadcast(tensors, options);
    })->Wait();
  }
  std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) override {
    return Start("send", [&] {
      std::vector<at::Tensor> tensors{tensor};
      return nccl_->send(tensors, peer, tag);
    });
  }
  std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) override {
    return Start("receive", [&] {
      std::vector<at::Tensor> tensors{tensor};
      return nccl_->recv(tensors, peer, tag);
    });
  }
  void Barrier() override {
    Start("barrier", [&] { return nccl_->barrier(); })->Wait();
    c10::cuda::getCurrentCUDAStream().synchronize();
  }
  // All ranks, before the process ends: NCCL must not be torn down in a static destructor.
  void Shutdown() override { nccl_->shutdown(); }

 private:
  template <typename F>
  std::unique_ptr<Work> Start(const char* operation, F&& start) {
    try {
      const at::NoGradGuard no_grad;
      return std::make_unique<NcclWork>(start(), where_, operation);
    } catch (const std::exception& error) {
      where_.Rethrow(operation, error);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  std::string name_;
  Where where_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options) {
  const auto it = std::find(options.ranks.begin(), options.ranks.end(), global_rank);
  if (it == options.ranks.end()) {
    throw Error(StatusCode::kInternal,
                fmt::format("rank {} is not in group {}", global_rank, options.name));
  }
  Where where{options.name, global_rank, options.step};
  try {
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = options.deadline;
    nccl_options->group_name = options.name;
    const Store scoped =
        store.WithPrefix(fmt::format("group/{}/{}", options.name, options.ranks.front()));
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        scoped.impl()->store, static_cast<int>(it - options.ranks.begin()),
        static_cast<int>(options.ranks.size()), nccl_options);
    nccl->setBoundDeviceId(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)));
    return std::make_unique<NcclGroup>(std::move(nccl), options.name, std::move(where));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    where.Rethrow("connecting", error);
  }
}

}  // namespace keel::parallel
