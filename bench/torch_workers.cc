// The keel_bench_torch module: the workers that need torch, and their options. See worker.h.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/checkpoint_worker.h"
#include "bench/offload_worker.h"
#include "bench/rollout_worker.h"
#include "bench/sync_worker.h"
#include "bench/train_worker.h"
#include "bench/worker.h"
#include "checkpoint/base/requests.h"
#include "common/status.h"

namespace keel::bench {

namespace {

// Each option's text is the field's comment, in the header of its struct.
template <typename Options>
std::shared_ptr<Options> OptionsOf(CLI::App& worker) {
  auto options = std::make_shared<Options>();
  worker.callback([options] { RunWorker(*options); });
  return options;
}

void AddDtype(CLI::App& worker, std::string& dtype) {
  worker.add_option("--dtype", dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
}

void AddCheckpoint(CLI::App& worker) {
  const auto o = OptionsOf<CheckpointWorkerOptions>(worker);
  worker.add_option("--checkpoints", o->directory);
  worker.add_option("--state", o->state.kind)->check(CLI::IsMember({"decoder", "small"}));
  worker.add_option("--megabytes", o->state.megabytes);
  worker.add_option("--products", o->products);
  worker.add_option("--threads", o->threads);
  worker.add_option("--io", o->io)->check(CLI::IsMember(AllNames<checkpoint::IoChoice>()));
  worker.add_option("--host-memory-cap", o->host_memory_cap);
  worker.add_flag("--optimizer-stable", o->optimizer_stable);
  worker.add_option("--load-threads", o->load_threads);
  worker.add_option("--writers", o->writers);
  worker.add_option("--keep", o->keep);
}

void AddOffload(CLI::App& worker) {
  const auto o = OptionsOf<OffloadWorkerOptions>(worker);
  worker.add_option("--model-config", o->config);
  worker.add_option("--device", o->device);
  AddDtype(worker, o->dtype);
  worker.add_option("--threads", o->threads);
}

void AddRollout(CLI::App& worker) {
  const auto o = OptionsOf<RolloutWorkerOptions>(worker);
  worker.add_option("--model", o->model);
  worker.add_option("--device", o->device);
  AddDtype(worker, o->dtype);
  worker.add_option("--threads", o->threads);
}

void AddSync(CLI::App& worker) {
  const auto o = OptionsOf<SyncWorkerOptions>(worker);
  worker.add_option("--model-config", o->config);
  worker.add_option("--tp", o->tp);
  worker.add_option("--pp", o->pp);
  worker.add_option("--rollout-tp", o->rollout_tp);
  AddDtype(worker, o->dtype);
}

void AddTrain(CLI::App& worker) {
  const auto o = OptionsOf<TrainWorkerOptions>(worker);
  worker.add_option("--model", o->model);
  worker.add_option("--device", o->device);
  AddDtype(worker, o->dtype);
  worker.add_option("--sequence", o->sequence);
  worker.add_option("--batch", o->batch);
  worker.add_option("--threads", o->threads);
}

constexpr WorkerEntry kTorchWorkers[] = {
    {"checkpoint", AddCheckpoint}, {"offload", AddOffload},
    {"rollout", AddRollout},       {"sync", AddSync},
    {"train", AddTrain},
};

}  // namespace

}  // namespace keel::bench

extern "C" __attribute__((visibility("default"))) int keel_bench_torch_worker(int argc,
                                                                              char** argv) {
  const keel::bench::WorkerEntry* worker =
      keel::bench::FindWorker(keel::bench::kTorchWorkers, argv[0]);
  if (worker == nullptr) {
    throw keel::Error(keel::StatusCode::kUsage, fmt::format("there is no worker \"{}\"", argv[0]));
  }
  return keel::bench::RunWorker(*worker, argc, argv);
}
