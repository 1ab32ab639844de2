#include "parallel/groups/host_staged_group.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace keel::parallel {

namespace {

// The host's work, and then the copy of what it brought.
class StagedWork final : public Work {
 public:
  StagedWork(std::unique_ptr<Work> work, at::Tensor host, at::Tensor device)
      : work_(std::move(work)), host_(std::move(host)), device_(std::move(device)) {}
  void Wait() override {
    work_->Wait();
    const at::NoGradGuard no_grad;
    if (device_.defined()) device_.copy_(host_);
    host_.reset();
    device_.reset();
  }

 private:
  std::unique_ptr<Work> work_;
  at::Tensor host_, device_;
};

class HostStagedGroup final : public ProcessGroup {
 public:
  explicit HostStagedGroup(std::unique_ptr<ProcessGroup> hosts) : hosts_(std::move(hosts)) {}

  int rank() const override { return hosts_->rank(); }
  int size() const override { return hosts_->size(); }
  const std::string& name() const override { return hosts_->name(); }

  std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) override {
    if (tensor.is_cpu()) return hosts_->AllReduceAsync(tensor, op);
    at::Tensor host = tensor.to(at::kCPU);
    auto work = hosts_->AllReduceAsync(host, op);
    return Staged(std::move(work), host, tensor);
  }
  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    if (out.is_cpu()) return hosts_->AllGatherAsync(out, in);
    at::Tensor host = EmptyOnHost(out);
    auto work = hosts_->AllGatherAsync(host, in.to(at::kCPU));
    return Staged(std::move(work), host, out);
  }
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    if (out.is_cpu()) return hosts_->ReduceScatterAsync(out, in);
    at::Tensor host = EmptyOnHost(out);
    auto work = hosts_->ReduceScatterAsync(host, in.to(at::kCPU));
    return Staged(std::move(work), host, out);
  }
  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>& out_sizes,
                                      const std::vector<int64_t>& in_sizes) override {
    if (out.is_cpu()) return hosts_->AllToAllAsync(out, in, out_sizes, in_sizes);
    at::Tensor host = EmptyOnHost(out);
    auto work = hosts_->AllToAllAsync(host, in.to(at::kCPU), out_sizes, in_sizes);
    return Staged(std::move(work), host, out);
  }
  void Broadcast(at::Tensor& tensor, int root) override {
    if (tensor.is_cpu()) return hosts_->Broadcast(tensor, root);
    at::Tensor host = tensor.to(at::kCPU);
    hosts_->Broadcast(host, root);
    tensor.copy_(host);
  }
  std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) override {
    if (tensor.is_cpu()) return hosts_->SendAsync(tensor, peer, tag);
    const at::Tensor host = tensor.to(at::kCPU);
    auto work = hosts_->SendAsync(host, peer, tag);
    return Staged(std::move(work), host, {});
  }
  std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) override {
    if (tensor.is_cpu()) return hosts_->RecvAsync(tensor, peer, tag);
    at::Tensor host = EmptyOnHost(tensor);
    auto work = hosts_->RecvAsync(host, peer, tag);
    return Staged(std::move(work), host, tensor);
  }
  void Barrier() override { hosts_->Barrier(); }
  void Shutdown() override { hosts_->Shutdown(); }

 private:
  static at::Tensor EmptyOnHost(const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  }
  static std::unique_ptr<Work> Staged(std::unique_ptr<Work> work, at::Tensor host,
                                      at::Tensor device) {
    return std::make_unique<StagedWork>(std::move(work), std::move(host), std::move(device));
  }

  std::unique_ptr<ProcessGroup> hosts_;
};

}  // namespace

std::unique_ptr<ProcessGroup> ByWayOfHosts(std::unique_ptr<ProcessGroup> hosts) {
  return std::make_unique<HostStagedGroup>(std::move(hosts));
}

}  // namespace keel::parallel
