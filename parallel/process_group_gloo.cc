// ProcessGroup over gloo, for tensors in host memory.

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "parallel/cuda_module.h"
#include "parallel/process_group.h"
#include "parallel/process_group_gloo_work.h"
#include "parallel/store_impl.h"

namespace keel::parallel {

namespace {

// Sums the pieces of an all-to-all, in rank order, in fp32: every rank's part is the same bits
// however often it is run.
class ReduceScatterWork final : public Work {
 public:
  ReduceScatterWork(std::unique_ptr<Work> exchange, at::Tensor pieces, at::Tensor out)
      : exchange_(std::move(exchange)), pieces_(std::move(pieces)), out_(std::move(out)) {}
  void Wait() override {
    exchange_->Wait();
    const at::NoGradGuard no_grad;
    at::Tensor flat = out_.view({-1});
    if (flat.scalar_type() == at::kBFloat16) {
      flat.copy_(at::sum(pieces_, {0}, false, at::kFloat));
      return;
    }
    flat.copy_(pieces_.select(0, 0));
    for (int64_t i = 1; i < pieces_.size(0); ++i) flat.add_(pieces_.select(0, i));
  }

 private:
  std::unique_ptr<Work> exchange_;
  at::Tensor pieces_;  // [ranks, elements]
  at::Tensor out_;
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, std::string name, WhereGloo where)
      : gloo_(std::move(gloo)),
        watch_(std::make_unique<MessageWatch>(*gloo_)),
        name_(std::move(name)),
        where_(std::move(where)) {}

  // gloo's threads end first, and one of them may be in an operation that gloo forgot (see
  // process_group_gloo_work.h): that one stays behind, until its deadline.
  ~GlooGroup() override {
    watch_.reset();
    std::promise<void> ended;
    const std::future<void> end = ended.get_future();
    try {
      std::thread([gloo = std::move(gloo_), ended = std::move(ended)]() mutable {
        gloo.reset();
        ended.set_value();
      }).detach();
      end.wait_for(std::chrono::seconds(3));
    } catch (const std::system_error&) {
      // No thread to be had: what it was given has ended here.
    }
  }

  int rank() const override { return gloo_->getRank(); }
  int size() const override { return gloo_->getSize(); }
  const std::string& name() const override { return name_; }

  std::unique_ptr<Work> AllReduceAsync(at::Tensor& tensor, ReduceOp op) override {
    return Start("all-reduce", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                         : op == ReduceOp::kMax ? c10d::ReduceOp::MAX
                                                : c10d::ReduceOp::MIN;
      return gloo_->allreduce(tensors, options);
    });
  }

  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    return Start("all-gather", [&] {
      at::Tensor flat_out = out.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      return gloo_->_allgather_base(flat_out, flat_in);
    });
  }

  // gloo's own reduce-scatter moves as much as an all-reduce; an all-to-all and a local sum move
  // half.
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    at::Tensor pieces = at::empty({size(), out.numel()}, in.options());
    auto exchange = Start("reduce-scatter", [&] {
      at::Tensor flat_out = pieces.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      std::vector<int64_t> even;
      return gloo_->alltoall_base(flat_out, flat_in, even, even);
    });
    return std::make_unique<ReduceScatterWork>(std::move(exchange), std::move(pieces), out);
  }

  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>& out_sizes,
                                      const std::vector<int64_t>& in_sizes) override {
    return Start("all-to-all", [&] {
      at::Tensor flat_out = out.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      std::vector<int64_t> to = out_sizes;
      std::vector<int64_t> from = in_sizes;
      return gloo_->alltoall_base(flat_out, flat_in, to, from);
    });
  }

  void Broadcast(at::Tensor& tensor, int root) override {
    Start("broadcast", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo_->broadcast(tensors, options);
    })->Wait();
  }

  std::unique_ptr<Work> SendAsync(const at::Tensor& tensor, int peer, int tag) override {
    return StartMessage("send", peer, [&] {
      std::vector<at::Tensor> tensors{tensor};
      return gloo_->send(tensors, peer, tag);
    });
  }

  std::unique_ptr<Work> RecvAsync(at::Tensor& tensor, int peer, int tag) override {
    return StartMessage("receive", peer, [&] {
      std::vector<at::Tensor> tensors{tensor};
      return gloo_->recv(tensors, peer, tag);
    });
  }

  void Barrier() override {
    Start("barrier", [&] { return gloo_->barrier(); })->Wait();
  }

  void Shutdown() override {}

 private:
  template <typename F>
  std::unique_ptr<Work> Start(const char* operation, F&& start) {
    try {
      const at::NoGradGuard no_grad;
      return std::make_unique<CollectiveWork>(start(), *gloo_, where_, operation);
    } catch (const std::exception& error) {
      where_.Rethrow(operation, error);
    }
  }
  template <typename F>
  std::unique_ptr<Work> StartMessage(const char* operation, int peer, F&& start) {
    try {
      const at::NoGradGuard no_grad;
      return std::make_unique<MessageWork>(start(), peer, *watch_, where_, operation);
    } catch (const std::exception& error) {
      where_.Rethrow(operation, error);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::unique_ptr<MessageWatch> watch_;
  std::string name_;
  WhereGloo where_;
};

// The local address that a packet to the store's host would leave from decides the interface, so
// that several hosts reach each other and one host stays on loopback.
std::shared_ptr<gloo::transport::Device> DeviceFor(const std::string& local_address) {
  return c10d::ProcessGroupGloo::createDeviceForHostname(local_address);
}

}  // namespace

std::unique_ptr<ProcessGroup> MakeProcessGroup(const Store& store, int global_rank,
                                               const GroupOptions& options) {
  if (options.ranks.size() == 1) return MakeSingleGroup(options.name);
  if (options.cuda) {
    return ValueOrThrow(LoadCudaModule())->MakeGroup(store, global_rank, options);
  }
  const auto it = std::find(options.ranks.begin(), options.ranks.end(), global_rank);
  if (it == options.ranks.end()) {
    throw Error(StatusCode::kInternal,
                fmt::format("rank {} is not in group {}", global_rank, options.name));
  }
  WhereGloo where{options.name, global_rank, options.deadline, options.step};
  try {
    auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.deadline);
    gloo_options->devices.push_back(DeviceFor(options.local_address));
    gloo_options->threads = 2;
    const Store scoped =
        store.WithPrefix(fmt::format("group/{}/{}", options.name, options.ranks.front()));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        scoped.impl()->store, static_cast<int>(it - options.ranks.begin()),
        static_cast<int>(options.ranks.size()), gloo_options);
    return std::make_unique<GlooGroup>(std::move(gloo), options.name, std::move(where));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    where.Rethrow("connecting", error);
  }
}

}  // namespace keel::parallel
