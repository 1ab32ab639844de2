#include "trainer/run/job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/fail_point.h"
#include "common/options/flat_values.h"
#include "common/program_id.h"
#include "parallel/cuda_module.h"
#include "trainer/inputs/run_paths.h"

namespace keel::trainer {

namespace {

// Where the tensors live.
at::Device ResolveDevice(const std::string& wanted, int local_rank) {
  // The CUDA module costs memory and time: without the driver's device there is nothing to ask it.
  if (wanted == "cpu" || (wanted == "auto" && access("/dev/nvidiactl", F_OK) != 0)) return at::kCPU;
  const auto module = parallel::LoadCudaModule();
  const Result<int> count = module.ok() ? (*module)->DeviceCount() : Result<int>(module.status());
  if (count.ok() && local_rank < *count) {
    (*module)->SetDevice(local_rank);
    return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank));
  }
  if (wanted == "auto") return at::kCPU;
  if (!count.ok()) throw Error(count.status().WithContext("trainer.device: cuda"));
  throw Error(
      StatusCode::kUnavailable,
      fmt::format(
          "trainer.device: cuda: local rank {} of {} usable GPUs; start fewer ranks a node, "
          "or set trainer.device to cpu",
          local_rank, *count));
}

}  // namespace

Job::Job(const TrainerInputs& inputs, Logger& log)
    : inputs_(inputs),
      log_(log),
      device_(ResolveDevice(inputs.loaded.config.trainer.device, inputs.env.local_rank)),
      dtype_(inputs.loaded.config.actor_rollout_ref.model.dtype == "bfloat16" ? at::kBFloat16
                                                                              : at::kFloat),
      deadline_(static_cast<int64_t>(inputs.loaded.config.trainer.deadline_seconds * 1000)),
      job_start_(inputs.env.job_start ? *inputs.env.job_start : SystemClock().Monotonic()) {
  if (config().trainer.threads_per_rank > 0)
    at::set_num_threads(static_cast<int>(config().trainer.threads_per_rank));
}

void Job::Phase(const char* phase, std::optional<int64_t> step) const {
  phase_ = phase;
  if (inputs_.status != nullptr) inputs_.status->Set(step.value_or(state.step), phase);
}

void Job::CheckPaths() const { ThrowIfError(CheckRunPaths(config())); }

// What this program, its configuration and its machine add to what all ranks must have alike.
void Job::AddFacts(SharedFacts* facts) const {
  static constexpr char kHere = 0;  // in the file, program or module, whose build is meant
  (*facts)["program"] = fmt::format("keel {} (build {})", ProgramVersion(), BuildId(&kHere));
  (*facts)["device"] = device_.is_cpu() ? "cpu" : "cuda";
  const std::set<std::string> per_node = PerNodeKeys();
  for (const auto& [key, value] :
       ValueOrThrow(options::Flatten({"resolved configuration", inputs_.loaded.resolved}))) {
    if (!per_node.contains(key)) facts->emplace(key, value);
  }
}

void Job::Connect(SharedFacts facts) {
  Phase("connect");
  const auto& megatron = actor().megatron;
  const auto layout = ValueOrThrow(parallel::Layout::Make(
      inputs_.env.world_size, static_cast<int>(megatron.tensor_model_parallel_size),
      static_cast<int>(megatron.pipeline_model_parallel_size)));
  store_ = std::make_unique<parallel::Store>(
      ValueOrThrow(parallel::Store::Connect(inputs_.env, deadline_)));
  hang_report_ =
      std::make_unique<parallel::HangReport>(*store_, inputs_.env.rank, inputs_.env.world_size);
  coordinator_ = std::make_unique<StoreCoordinator>(ValueOrThrow(store_->Clone()), inputs_.env.rank,
                                                    inputs_.env.world_size);
  AddFacts(&facts);
  ThrowIfError(AgreeOnFacts(*coordinator_, facts, deadline_));
  parallel::ContextOptions options;
  options.cuda = !device_.is_cpu();
  options.device_index = device_.index();
  options.deadline = deadline_;
  options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
  context_ =
      std::make_unique<parallel::ParallelContext>(layout, inputs_.env.rank, *store_, options);
  log_.Info("{}, {} on {}", context_->Overview(), config().actor_rollout_ref.model.dtype,
            device_.str());
}

bool Job::StopRequested() const {
  return inputs_.stop_requested != nullptr && inputs_.stop_requested->load() != 0;
}

bool Job::TooManySavesFailed() const {
  const std::optional<int64_t>& most = config().trainer.max_failed_saves;
  return most && saves_ != nullptr && saves_->counts().failed_in_a_row >= *most;
}

bool Job::WantsToStop(double mean_step_s, double validation_s) const {
  if (StopRequested() || TooManySavesFailed()) return true;
  if (!config().trainer.save_before_deadline || !rank0()) return false;
  const auto limit = static_cast<double>(*ParseRunTime(*config().trainer.save_before_deadline));
  const double run_time = Seconds(SystemClock().Monotonic() - job_start_);
  // This step and one that is twice as slow, a validation after it, and a save that is half as slow
  // again.
  return run_time + 3 * mean_step_s + 1.5 * validation_s + 1.5 * checkpointer_->expected_save_s() >=
         limit;
}

void Job::Finish() {
  ThrowIfError(FailPoint("trainer.close"));
  NoteSaves(saves_->Finish());
  if (metrics_) metrics_->Close();
  ThrowIfError(checkpointer_->Close());
  context_->world().Barrier();
  context_->Shutdown();
  all_left_ = true;
  if (config().trainer.save_freq > 0) {
    Status last = saves_->last_status().WithContext(
        fmt::format("the state of the last step, {}, is not saved", state.step));
    if (TooManySavesFailed()) {
      last = last.WithContext(
          fmt::format("trainer.max_failed_saves is {}, and {} saves in a row have failed",
                      *config().trainer.max_failed_saves, saves_->counts().failed_in_a_row));
    }
    ThrowIfError(last);
  }
}

std::string Job::WhoHangs(const std::exception& error) const {
  if (hang_report_ == nullptr || inputs_.env.world_size == 1 || all_left_) return {};
  const auto* const known = dynamic_cast<const Error*>(&error);
  const Status cause = known ? known->status() : Status(StatusCode::kInternal, error.what());
  // Ranks begin to wait, and so give up, within a step of each other.
  constexpr std::chrono::milliseconds kLeast(2'000), kMost(10'000);
  return hang_report_->GiveUp(cause, std::clamp(deadline_ / 4, kLeast, kMost));
}

RunEnd Job::Preempted() {
  if (TooManySavesFailed()) {
    log_.Error(
        "{} saves in a row have failed, as many as trainer.max_failed_saves allows: ends "
        "after step {}, which is not saved",
        saves_->counts().failed_in_a_row, state.step);
  } else if (saves_->saved_step() == state.step) {
    log_.Info("asked to stop: ends after step {}; the next start goes on from here", state.step);
  } else {
    log_.Warning(
        "asked to stop: ends after step {}, which is not saved; the next start goes on "
        "from the newest checkpoint, or from the beginning where there is none",
        state.step);
  }
  Finish();
  return RunEnd::kPreempted;
}

TrainEngineOptions Job::EngineOptions(const MegatronSection& megatron,
                                      const OptimSection& optim) const {
  TrainEngineOptions options;
  options.dtype = dtype_;
  options.device = device_;
  options.sequence_parallel =
      megatron.sequence_parallel && actor().megatron.tensor_model_parallel_size > 1;
  options.recompute = config().actor_rollout_ref.model.enable_gradient_checkpointing;
  options.bucket_bytes = static_cast<int64_t>(megatron.bucket_megabytes * (1 << 20));
  options.adamw = {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
  options.clip_grad = optim.clip_grad;
  options.offload = {megatron.param_offload, megatron.grad_offload, megatron.optimizer_offload};
  return options;
}

void Job::FillWeights(const ModelSource& source, TrainEngine& engine) {
  if (source.directory.empty()) {
    engine.Initialize(static_cast<uint64_t>(config().trainer.seed));
    return;
  }
  engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    ThrowIfError(
        ImportWeights(source.directory, source.config, model::Head::kVocabulary, tables.model));
    return {.weights = true};
  });
}

void Job::OpenMetrics() {
  if (!rank0()) return;
  // A full disk does not stop a run that has its state.
  if (const Status written = ReplaceFileDurably(*fs_, kConfigName, inputs_.loaded.resolved);
      written.code() == StatusCode::kNoSpace) {
    log_.Warning("{}: config.yaml is not written: {}", config().trainer.default_local_dir,
                 written.message());
  } else {
    ThrowIfError(written);
  }
  const auto wants = [&](const char* logger) {
    const std::vector<std::string>& all = config().trainer.logger;
    return std::find(all.begin(), all.end(), logger) != all.end();
  };
  metrics_ = std::make_unique<MetricsWriter>(ValueOrThrow(MetricsWriter::Open(
      config().trainer.default_local_dir, state.step, wants("jsonl"), wants("console"), log_)));
}

LrScheduleOptions Job::Schedule(const OptimSection& optim, const char* key,
                                int64_t total_steps) const {
  LrScheduleOptions schedule;
  schedule.lr = optim.lr;
  schedule.min_lr = optim.min_lr;
  schedule.style = optim.lr_decay_style == "linear"   ? LrDecayStyle::kLinear
                   : optim.lr_decay_style == "cosine" ? LrDecayStyle::kCosine
                   : optim.lr_decay_style == "wsd"    ? LrDecayStyle::kWsd
                                                      : LrDecayStyle::kConstant;
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
