#include "trainer/run/job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "parallel/groups/cuda_module.h"
#include "parallel/tensor/matrix_product.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/model_weights.h"

namespace keel::trainer {

Job::Job(const JobOptions& options, at::Device device, Logger& log)
    : options_(options),
      log_(log),
      device_(device),
      dtype_(options.config.model.dtype == WeightDtype::kBfloat16 ? at::kBFloat16 : at::kFloat),
      deadline_(static_cast<int64_t>(options.config.trainer.deadline_seconds * 1000)),
      job_start_(options.env.job_start ? *options.env.job_start : SystemClock().Monotonic()) {
  if (config().trainer.threads_per_rank > 0)
    at::set_num_threads(static_cast<int>(config().trainer.threads_per_rank));
}

void Job::Phase(const char* phase, int64_t step) const {
  phase_ = phase;
  if (options_.status != nullptr) options_.status->Set(step, phase);
}

void Job::Attach(parallel::ParallelContext& context, at::Device device) {
  context_ = &context;
  device_ = device;
}

void Job::MakeHostKernels() const {
  if (device_.is_cpu()) parallel::MakeHostKernels(dtype_);
}

bool Job::StopRequested() const {
  return options_.stop_requested != nullptr && options_.stop_requested->load() != 0;
}

double Job::SecondsSinceStop() const {
  if (!StopRequested()) return 0;
  const auto now = SystemClock().Monotonic().count();
  return static_cast<double>(now - options_.stop_requested->load()) / 1e9;
}

void Job::CountVotes() {
  vote_.Begin();
  at::Tensor sums = at::tensor(vote_.Ballot(), at::kDouble).to(device_);
  context_->world().AllReduce(sums);
  vote_.Count(sums[0].item<double>(), sums[1].item<double>());
}

bool Job::StopWanted() {
  CountVotes();
  return vote_.stop();
}

double Job::RunSeconds() const { return Seconds(SystemClock().Monotonic() - job_start_); }

std::map<std::string, double> Job::DeviceMemory() const {
  if (device_.is_cpu()) return {};
  return DeviceMemoryMetrics(ValueOrThrow(parallel::LoadCudaModule())->Memory(device_.index()));
}

TrainEngineOptions Job::EngineOptions(const MegatronSection& megatron, const OptimSection& optim) {
  TrainEngineOptions options;
  options.vote = &vote_;
  options.dtype = dtype_;
  options.device = device_;
  options.sequence_parallel =
      megatron.sequence_parallel && config().megatron.tensor_model_parallel_size > 1;
  options.recompute = config().model.enable_gradient_checkpointing;
  options.bucket_bytes = static_cast<int64_t>(megatron.bucket_megabytes * (1 << 20));
  options.adamw = {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
  options.clip_grad = optim.clip_grad;
  options.offload = {megatron.param_offload, megatron.grad_offload, megatron.optimizer_offload};
  return options;
}

BatchOptions Job::BatchesFor(const TrainEngineOptions& engine) const {
  BatchOptions options;
  options.batch_size = config().data.train_batch_size;
  options.micro_batch_size = config().data.micro_batch_size_per_gpu;
  const DataSection& data = config().data;
  const bool cuts = config().trainer.task == TaskKind::kPretrain ||
                    !KeepsWhole(data.packing.value_or(Packing::kNone));
  if (cuts && config().trainer.task != TaskKind::kDpo) options.max_length = data.max_length;
  options.dp_rank = context_->dp_rank();
  options.dp = context_->layout().dp();
  options.pad_to_multiple =
      engine.sequence_parallel ? config().megatron.tensor_model_parallel_size : 1;
  return options;
}

void Job::FillWeights(const ModelDescription& model, TrainEngine& engine) {
  const auto seed = static_cast<uint64_t>(config().trainer.seed);
  if (model.directory.empty()) {
    engine.Initialize(seed);
  } else if (engine.has_adapters()) {
    engine.InitializeAdapters(seed);
  }
  if (model.directory.empty() && model.adapter_directory.empty()) return;
  engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    if (!model.directory.empty()) {
      ThrowIfError(ImportWeights(model.directory, model.config, model::Head::kVocabulary,
                                 engine.has_adapters() ? tables.base : tables.model));
    }
    if (!model.adapter_directory.empty())
      ThrowIfError(ImportAdapters(model.adapter_directory, model.config, tables.model));
    return {.weights = true};
  });
}

LrScheduleOptions Job::Schedule(const OptimSection& optim, const char* key,
                                int64_t total_steps) const {
  LrScheduleOptions schedule;
  schedule.lr = optim.lr;
  schedule.min_lr = optim.min_lr;
  schedule.style = optim.lr_decay_style;
  schedule.warmup_steps = std::max<int64_t>(0, optim.lr_warmup_steps);
  schedule.decay_steps = optim.lr_decay_steps.value_or(total_steps);
  schedule.wsd_decay_steps =
      optim.lr_wsd_decay_steps.value_or(std::max<int64_t>(1, total_steps / 10));
  if (rank0() && HighestLearningRate(schedule, total_steps) == 0) {
    log_.Warning(
        "{}.{}: the learning rate is 0 in all of the run's {} steps, so that none changes a weight",
        key,
        optim.lr == 0 ? std::string("lr is 0")
                      : fmt::format("lr_warmup_steps is {}", optim.lr_warmup_steps),
        total_steps);
  }
  return schedule;
}

}  // namespace keel::trainer
