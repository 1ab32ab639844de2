#include "bench/sync_worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "bench/counting_allocator.h"
#include "bench/weight_sync_peers.h"
#include "bench/worker_protocol.h"
#include "common/clock.h"
#include "common/process/program_id.h"
#include "common/tensors/tensor_digest.h"
#include "common/tensors/transfer_plan.h"
#include "parallel/launch_env.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/model_source.h"
#include "trainer/sync/group_bytes.h"
#include "trainer/sync/rollout_model.h"

namespace keel::bench {

namespace {

class SyncWorker {
 public:
  SyncWorker(const SyncWorkerOptions& options, parallel::ParallelContext& context,
             const model::HfConfig& config, CountingAllocator& memory)
      : options_(options),
        context_(context),
        config_(config),
        memory_(memory),
        engine_(context, config, Engine(options)) {
    engine_.Initialize(1);
  }

  Json Ready() {
    return {{"ready", true},
            {"name", "keel"},
            {"pid", getpid()},
            {"rank", context_.rank()},
            {"layout", context_.layout().ToString()},
            {"versions", {{"keel", std::string(ProgramVersion())}, {"torch", "2.11.0"}}},
            {"parameters", config_.NumParameters()},
            {"trainer_bytes", engine_.DeviceTable().bytes()}};
  }

  // open staged|in_place BUCKET_BYTES: the rollout model, once.
  Json Open(std::istringstream& words) {
    std::string mode;
    int64_t bucket = 0;
    words >> mode >> bucket;
    if ((mode != "staged" && mode != "in_place") || bucket <= 0)
      return {{"error", "open needs staged or in_place, and the bytes of a bucket"}};
    if (model_ != nullptr) return {{"error", "there is a rollout model already"}};
    trainer::RolloutModelOptions options;
    options.tp = options_.rollout_tp;
    options.engine.max_model_len = 64;  // its cache is not what is measured
    options.engine.scheduler.max_num_seqs = 1;
    options.staged = mode == "staged";
    options.sync.bucket_bytes = bucket;
    context_.world().Barrier();
    const Stopwatch watch;
    model_ = std::make_unique<trainer::RolloutModel>(context_, config_, engine_, options);
    const double seconds = watch.Elapsed();
    model_->Update();  // the memory of the rollout, and every page of it
    return {{"seconds", seconds},
            {"aliased", model_->aliased()},
            {"rollout_bytes", model_->Table().bytes()}};
  }

  // sync keel|gather-broadcast|stage-broadcast
  Json Sync(std::istringstream& words) {
    std::string way;
    words >> way;
    if (model_ == nullptr) return {{"error", "sync before open"}};
    std::unique_ptr<WeightSyncPeer> peer;
    if (way == "gather-broadcast") {
      peer = std::make_unique<GatherBroadcast>(context_.world(), engine_.DeviceTable());
    } else if (way == "stage-broadcast") {
      peer = std::make_unique<StageBroadcast>(context_, engine_.DeviceTable());
    } else if (way != "keel") {
      return {{"error", "no way of syncing: " + way}};
    }
    context_.world().Barrier();
    memory_.Restart();
    const int64_t before = memory_.now();
    Json answer;
    const Stopwatch watch;
    if (peer != nullptr) {
      peer->Run(engine_.DeviceTable(), model_->Table());
      context_.world().Barrier();  // Keel's returns when every rank has every byte
      answer["seconds"] = watch.Elapsed();
    } else {
      const trainer::WeightUpdate update = model_->Update();
      answer = {{"seconds", watch.Elapsed()},
                {"sent_bytes", update.sync.sent_bytes},
                {"copied_bytes", update.sync.copied_bytes},
                {"rounds", update.sync.rounds},
                {"buffer_bytes", update.sync.buffer_bytes},
                {"exchange_s", update.sync.exchange_seconds},
                {"digest_s", update.sync.digest_seconds}};
    }
    answer["extra_bytes"] = memory_.peak() - before;
    return answer;
  }

  // The rollout's weights become NaN.
  Json Corrupt() {
    model_->Corrupt();
    return {{"corrupted", !model_->aliased()}};
  }

  // Of the rollout's weights on this rank as they stand.
  Json Digest() {
    const ShardTable table = model_->Table();
    uint64_t sum = 0;
    for (const Shard& shard : table.shards()) {
      const TensorInfo& tensor = table.tensor_of(shard);
      sum = sum * 31 + BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box, shard.view);
    }
    return {{"digest", fmt::format("{:016x}", sum)}};
  }

  // The limit: this rank's bytes to and from each peer in one all-to-all, between buffers that are
  // there and hold nothing of use, and one memcpy for what it has itself; the median of three.
  Json Wire() {
    if (wire_in_.empty()) Plan();
    at::Tensor in = at::zeros({Sum(wire_in_)}, at::kByte);
    at::Tensor out = at::zeros({Sum(wire_out_)}, at::kByte);
    const at::Tensor from = at::zeros({own_bytes_}, at::kByte);
    at::Tensor to = at::zeros({own_bytes_}, at::kByte);
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      context_.world().Barrier();
      const Stopwatch watch;
      to.copy_(from);
      context_.world().AllToAllAsync(out, in, wire_out_, wire_in_)->Wait();
      seconds.push_back(watch.Elapsed());
    }
    std::sort(seconds.begin(), seconds.end());
    return {{"seconds", seconds[1]}, {"sent_bytes", in.numel()}, {"copied_bytes", own_bytes_}};
  }

 private:
  static trainer::TrainEngineOptions Engine(const SyncWorkerOptions& o) {
    trainer::TrainEngineOptions options;
    options.dtype = o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
    options.inference = true;  // nothing of an optimizer takes part in a sync
    return options;
  }

  static int64_t Sum(const std::vector<int64_t>& sizes) {
    int64_t sum = 0;
    for (const int64_t size : sizes) sum += size;
    return sum;
  }

  // Whose bytes have to go where.
  void Plan() {
    const auto tables = [&](const ShardTable& mine) {
      std::vector<ShardTable> all;
      for (const std::string& text :
           trainer::AllGatherBytes(context_.world(), mine.Serialize(), at::kCPU))
        all.push_back(ValueOrThrow(ShardTable::Deserialize(text)));
      return all;
    };
    const std::vector<ShardTable> from = tables(engine_.DeviceTable());
    const std::vector<ShardTable> to = tables(model_->Table());
    const TransferPlan plan = ValueOrThrow(PlanTransfer(from, to));
    const auto world = static_cast<size_t>(context_.layout().world());
    wire_in_.assign(world, 0);
    wire_out_.assign(world, 0);
    for (const Transfer& transfer : plan.transfers) {
      const ShardTable& table = to[static_cast<size_t>(transfer.destination)];
      const Shard& shard = table.shards()[static_cast<size_t>(transfer.destination_shard)];
      const int64_t bytes =
          transfer.box.elements() * static_cast<int64_t>(DTypeSize(table.tensor_of(shard).dtype));
      const int me = context_.rank();
      if (transfer.source == transfer.destination) {
        if (transfer.source == me) own_bytes_ += bytes;
        continue;
      }
      if (transfer.source == me) wire_in_[static_cast<size_t>(transfer.destination)] += bytes;
      if (transfer.destination == me) wire_out_[static_cast<size_t>(transfer.source)] += bytes;
    }
  }

  const SyncWorkerOptions& options_;
  parallel::ParallelContext& context_;
  const model::HfConfig& config_;
  CountingAllocator& memory_;
  trainer::TrainEngine engine_;
  std::unique_ptr<trainer::RolloutModel> model_;
  std::vector<int64_t> wire_in_, wire_out_;  // by rank
  int64_t own_bytes_ = 0;
};

}  // namespace

void RunWorker(const SyncWorkerOptions& o) {
  trainer::KeepLargeBlocks();
  at::set_num_threads(o.threads);
  parallel::SilenceStoreWarnings();
  CountingAllocator& memory = CountingAllocator::Install();
  const auto env = ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
  const auto layout = ValueOrThrow(parallel::Layout::Make(env.world_size, o.tp, o.pp));
  const auto store = ValueOrThrow(parallel::Store::Connect(env, std::chrono::minutes(2)));
  parallel::ParallelContext context(layout, env.rank, store, {});
  const auto source = ValueOrThrow(trainer::ResolveModel(
      "", ReadConfig(o.config), o.dtype == "bfloat16" ? DType::kBF16 : DType::kF32));
  {
    SyncWorker worker(o, context, source.config, memory);
    Answer(worker.Ready());
    const auto plain = [](auto method) {
      return [method](std::istringstream&) { return method(); };
    };
    Serve({{"open", [&](std::istringstream& words) { return worker.Open(words); }},
           {"sync", [&](std::istringstream& words) { return worker.Sync(words); }},
           {"corrupt", plain([&] { return worker.Corrupt(); })},
           {"digest", plain([&] { return worker.Digest(); })},
           {"wire", plain([&] { return worker.Wire(); })}});
  }
  context.Shutdown();
}

}  // namespace keel::bench
