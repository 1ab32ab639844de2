#include "bench/offload_worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "bench/bench_device.h"
#include "bench/worker_protocol.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/process/program_id.h"
#include "parallel/groups/context.h"
#include "parallel/groups/cuda_module.h"
#include "trainer/engine/host_arena.h"
#include "trainer/engine/memory.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_source.h"

namespace keel::bench {

namespace {

using trainer::Residency;
using trainer::StateClass;

constexpr std::array kMoved = {StateClass::kParams, StateClass::kOptimizer};

// All threads together, nothing but memcpy.
void CopyAll(std::byte* to, const std::byte* from, int64_t bytes) {
  at::parallel_for(0, bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

// The module that serves the device; null on a CPU.
parallel::CudaModule* ModuleOf(const BenchDevice& on) {
  return on.is_cpu() ? nullptr : ValueOrThrow(parallel::LoadCudaModule());
}

// The limit: the same bytes in blocks of the same sizes, moved by copies alone between memory that
// is kept: on a CPU by all threads, on a GPU by its own, one stream, from and to pinned memory.
class Copies {
 public:
  Copies(const std::vector<int64_t>& sizes, const BenchDevice& on) : module_(ModuleOf(on)) {
    for (const int64_t size : sizes) {
      device_.push_back(at::ones({size}, at::TensorOptions(on.device()).dtype(at::kByte)));
      host_.push_back(std::make_unique<trainer::HostArena>(size, module_));
    }
    on.Wait();
  }

  // Seconds down and up.
  std::pair<double, double> Run() {
    Stopwatch watch;
    Each([this](std::byte* host, std::byte* device, int64_t bytes) {
      if (module_ != nullptr) return module_->CopyToHost(host, device, static_cast<size_t>(bytes));
      CopyAll(host, device, bytes);
      return kDone;
    });
    const double down = watch.Lap();
    Each([this](std::byte* host, std::byte* device, int64_t bytes) {
      if (module_ != nullptr)
        return module_->CopyToDevice(device, host, static_cast<size_t>(bytes));
      CopyAll(device, host, bytes);
      return kDone;
    });
    return {down, watch.Lap()};
  }

 private:
  static constexpr int64_t kDone = -1;  // in place of a ticket

  // Starts the copies of all blocks, and waits for them.
  template <typename Start>
  void Each(const Start& start) {
    int64_t ticket = kDone;
    for (size_t i = 0; i < device_.size(); ++i) {
      ticket = start(host_[i]->data(), static_cast<std::byte*>(device_[i].mutable_data_ptr()),
                     host_[i]->bytes());
    }
    if (ticket != kDone) ThrowIfError(module_->WaitCopy(ticket));
  }

  parallel::CudaModule* module_;
  std::vector<at::Tensor> device_;
  std::vector<std::unique_ptr<trainer::HostArena>> host_;
};

class OffloadWorker {
 public:
  OffloadWorker(parallel::ParallelContext& context, const model::HfConfig& config,
                at::ScalarType dtype, const BenchDevice& on)
      : on_(on), engine_(context, config, Options(dtype, on)), residency_(engine_.residency()) {
    engine_.Initialize(1);
    for (const StateClass c : kMoved) bytes_ += residency_.device_bytes(c);
  }

  Json Ready(const model::HfConfig& config) {
    return {{"ready", true},
            {"name", "keel"},
            {"versions", {{"keel", std::string(ProgramVersion())}, {"torch", "2.11.0"}}},
            {"parameters", config.NumParameters()},
            {"bytes", bytes_},
            {"state", residency_.Report()}};
  }

  // Weights and optimizer state to the host and back.
  Json Cycle() {
    double down = 0;
    double up = 0;
    for (const StateClass c : kMoved) down += residency_.Offload(c);
    int64_t left = 0;
    for (const StateClass c : kMoved) left += residency_.device_bytes(c);
    for (const StateClass c : kMoved) up += residency_.Load(c);
    return {{"offload_s", down}, {"load_s", up}, {"bytes", bytes_}, {"left_bytes", left}};
  }

  Json Copy() {
    if (copies_ == nullptr) {
      std::vector<int64_t> sizes;
      for (const StateClass c : kMoved) sizes.push_back(residency_.device_bytes(c));
      // As the engine has them: weights, then masters and both moments.
      const int64_t optimizer = sizes.back();
      sizes.back() = optimizer / 3;
      sizes.insert(sizes.end(), 2, optimizer / 3);
      copies_ = std::make_unique<Copies>(sizes, on_);
    }
    const auto [down, up] = copies_->Run();
    return {{"offload_s", down}, {"load_s", up}, {"bytes", bytes_}};
  }

  // cycles N: resident bytes while the state is on the host, and while it is on the device; of a
  // GPU also the bytes that its driver has free then.
  Json Cycles(std::istringstream& words) {
    int64_t count = 0;
    words >> count;
    std::vector<int64_t> host, device, free_on_host, free_on_device;
    const auto note = [&](std::vector<int64_t>& resident, std::vector<int64_t>& free) {
      resident.push_back(WithMemory({})["rss_bytes"]);
      if (!on_.is_cpu()) free.push_back(ModuleOf(on_)->Memory(on_.device().index()).free);
    };
    for (int64_t i = 0; i < count; ++i) {
      for (const StateClass c : kMoved) residency_.Offload(c);
      note(host, free_on_host);
      for (const StateClass c : kMoved) residency_.Load(c);
      note(device, free_on_device);
    }
    Json answer = {{"on_host", host}, {"on_device", device}};
    if (!on_.is_cpu()) {
      answer["free_on_host"] = free_on_host;
      answer["free_on_device"] = free_on_device;
    }
    return answer;
  }

  // Largest of the seconds of moves that have nothing to move.
  Json Idle() {
    double most = 0;
    const auto all = {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer};
    for (int i = 0; i < 100; ++i) {
      for (const StateClass c : all) {
        most = std::max({most, residency_.Load(c), residency_.LoadToRead(c)});
      }
    }
    for (const StateClass c : all) residency_.Offload(c);
    for (int i = 0; i < 100; ++i) {
      for (const StateClass c : all) most = std::max(most, residency_.Offload(c));
    }
    for (const StateClass c : all) residency_.Load(c);
    return {{"seconds", most}};
  }

  // Of the weights and the optimizer state, wherever they are. Of a GPU's copies are made, so that
  // the next offload has nothing to copy.
  Json Digest() {
    std::string text;
    if (!on_.is_cpu())
      for (const StateClass c : kMoved) residency_.CopyToHost(c);
    const trainer::TrainEngine::StateTables tables = engine_.SaveTables();
    for (const ShardTable& table : {tables.model, tables.optimizer}) {
      for (const Shard& shard : table.shards()) {
        const TensorInfo& tensor = table.tensor_of(shard);
        const auto bytes = static_cast<size_t>(shard.box.elements()) * DTypeSize(tensor.dtype);
        if (!(shard.view.strides == ContiguousStrides(shard.box.size)))
          return {{"error", tensor.name + " is in pieces on one rank"}};
        const Digest128 digest = Hash128({shard.view.data, bytes});
        text += fmt::format("{:016x}{:016x}", digest.high, digest.low);
      }
    }
    const Digest128 all = Hash128(std::as_bytes(std::span(text)));
    return {{"digest", fmt::format("{:016x}{:016x}", all.high, all.low)}};
  }

 private:
  static trainer::TrainEngineOptions Options(at::ScalarType dtype, const BenchDevice& on) {
    trainer::TrainEngineOptions options;
    options.dtype = dtype;
    options.device = on.device();
    options.offload = {true, true, true};
    return options;
  }

  const BenchDevice& on_;
  trainer::TrainEngine engine_;
  Residency& residency_;
  int64_t bytes_ = 0;
  std::unique_ptr<Copies> copies_;
};

}  // namespace

void RunWorker(const OffloadWorkerOptions& o) {
  const BenchDevice on(o.device);
  trainer::KeepLargeBlocks();
  at::set_num_threads(o.threads);
  const auto layout = ValueOrThrow(parallel::Layout::Make(1, 1, 1));
  parallel::ParallelContext context(layout, 0, parallel::Store::InProcess(),
                                    {.cuda = !on.is_cpu(), .device_index = on.device().index()});
  const bool half = o.dtype == "bfloat16";
  const auto source = ValueOrThrow(
      trainer::ResolveModel("", ReadConfig(o.config), half ? DType::kBF16 : DType::kF32));
  OffloadWorker worker(context, source.config, half ? at::kBFloat16 : at::kFloat, on);
  Answer(worker.Ready(source.config));
  const auto plain = [](auto method) { return [method](std::istringstream&) { return method(); }; };
  Serve({{"cycle", plain([&] { return worker.Cycle(); })},
         {"copy", plain([&] { return worker.Copy(); })},
         {"cycles", [&](std::istringstream& words) { return worker.Cycles(words); }},
         {"idle", plain([&] { return worker.Idle(); })},
         {"digest", plain([&] { return worker.Digest(); })}});
}

}  // namespace keel::bench
