// ProcessGroup over gloo, for tensors in host memory.

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "common/guarded.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/groups/host_staged_group.h"
#include "parallel/groups/link_group.h"
#include "parallel/groups/process_group.h"
#include "parallel/groups/process_group_gloo_work.h"
#include "parallel/store/store_impl.h"

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

class GlooGroup final : public BackendGroup {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, WhereInGroup where)
      : BackendGroup(*gloo, std::move(where)),
        gloo_(std::move(gloo)),
        watch_(std::make_unique<MessageWatch>(*gloo_, this->where())) {}

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
      // What a group was given up for will not end now.
      if (!where().IsGivenUp()) end.wait_for(std::chrono::seconds(3));
    } catch (const std::system_error&) {
      // No thread to be had: what it was given has ended here.
    }
  }

  // gloo's own reduce-scatter moves as much as an all-reduce; an all-to-all and a local sum move
  // half.
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    at::Tensor pieces = at::empty({size(), out.numel()}, in.options());
    auto exchange = Start("reduce-scatter", kAllRanks, [&] {
      at::Tensor flat_out = pieces.view({-1});
      at::Tensor flat_in = in.reshape({-1});
      std::vector<int64_t> even;
      return gloo_->alltoall_base(flat_out, flat_in, even, even);
    });
    return std::make_unique<ReduceScatterWork>(std::move(exchange), std::move(pieces), out);
  }

  void Shutdown() override {}

 private:
  std::unique_ptr<Work> Watch(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                              int peer) override {
    if (peer == kAllRanks)
      return std::make_unique<CollectiveWork>(std::move(work), *gloo_, where(), operation);
    return std::make_unique<MessageWork>(std::move(work), peer, *watch_, where(), operation);
  }

  void CheckAlive() const override {
    if (where().IsGivenUp()) throw Error(where().Failure("an operation", kGivenUp));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::unique_ptr<MessageWatch> watch_;
};

constexpr int kThreads = 2;  // of a group

// As often gloo connects two ranks, each time for as long as its options say.
constexpr int kConnects = 5;

// The store of a group that may be given up while its ranks look for each other, for which they
// have the whole `deadline`.
class StoreUntilGivenUp final : public c10d::PrefixStore {
 public:
  StoreUntilGivenUp(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
                    std::chrono::milliseconds deadline, const std::atomic<bool>& given_up)
      : c10d::PrefixStore(std::move(prefix), std::move(store)),
        deadline_(deadline),
        given_up_(given_up) {}

  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& /*timeout*/) override {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + deadline_;;) {
      try {
        return c10d::PrefixStore::wait(keys, std::min(deadline_, kLook));
      } catch (const c10::DistStoreError&) {
        if (Clock::now() >= end) throw;
      }
      if (given_up_) throw std::runtime_error(kGivenUp);
    }
  }
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return c10d::PrefixStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    return c10d::PrefixStore::multiGet(keys);
  }

 private:
  const std::chrono::milliseconds deadline_;
  const std::atomic<bool>& given_up_;
};

// The local address that a packet to the store's host would leave from decides the interface, so
// that several hosts reach each other and one host stays on loopback.
std::shared_ptr<gloo::transport::Device> DeviceFor(const GroupOptions& options) {
  return c10d::ProcessGroupGloo::createDeviceForHostname(options.local_address, options.lazy);
}

// c10d's constructor waits for ever, or ends the process, where it gets some of its threads and not
// all: so they are had before, and what they take is free again for it.
void TryThreads(int count) {
  std::promise<void> over;
  const std::shared_future<void> end = over.get_future().share();
  std::vector<std::thread> threads;
  Status had;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([end] { end.wait(); });
  } catch (const std::exception& error) {
    had = StatusOf(error);
  }
  over.set_value();
  for (std::thread& thread : threads) thread.join();
  ThrowIfError(had);
}

}  // namespace

std::unique_ptr<ProcessGroup> MakeProcessGroup(const Store& store, int global_rank,
                                               const GroupOptions& options) {
  return MakeLinkGroup(store, global_rank, options, nullptr);
}

std::unique_ptr<ProcessGroup> MakeLinkGroup(const Store& store, int global_rank,
                                            const GroupOptions& options,
                                            const std::atomic<bool>* given_up) {
  if (options.ranks.size() == 1) return MakeSingleGroup(options.name);
  if (options.cuda) {
    if (options.by_host) {
      GroupOptions of_hosts = options;
      of_hosts.cuda = false;
      return ByWayOfHosts(MakeLinkGroup(store, global_rank, of_hosts, given_up));
    }
    return ValueOrThrow(LoadCudaModule())->MakeGroup(store, global_rank, options, given_up);
  }
  const int rank = RankInGroup(options, global_rank);
  WhereInGroup where(options, global_rank);
  where.given_up = given_up;
  try {
    TryThreads(kThreads + 2);  // and those of a device
    auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.deadline);
    gloo_options->devices.push_back(DeviceFor(options));
    gloo_options->threads = kThreads;
    const std::string prefix = fmt::format("group/{}/{}", options.name, options.ranks.front());
    c10::intrusive_ptr<c10d::Store> scoped = store.WithPrefix(prefix).impl()->store;
    if (given_up != nullptr) {
      // A peer that is lost in the middle of it is not to hold up who goes on without it.
      gloo_options->timeout = std::max(options.deadline / kConnects, kLook);
      scoped = c10::make_intrusive<StoreUntilGivenUp>(prefix, store.impl()->store, options.deadline,
                                                      *given_up);
    }
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        std::move(scoped), rank, static_cast<int>(options.ranks.size()), gloo_options);
    gloo->setTimeout(options.deadline);
    return std::make_unique<GlooGroup>(std::move(gloo), std::move(where));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    where.Rethrow("connecting", error);
  }
}

}  // namespace keel::parallel
