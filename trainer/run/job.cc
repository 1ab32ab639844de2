#include "trainer/run/job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/open_files.h"
#include "parallel/cuda_module.h"
#include "parallel/determinism.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/model_weights.h"
#include "trainer/run/device_agreement.h"
#include "trainer/run/shared_facts.h"

namespace keel::trainer {

namespace {

// What this rank could compute on, as text. How kernels sum is settled before the first of them is
// loaded.
std::string OfferOfRank(const TrainerInputs& inputs) {
  const auto& trainer = inputs.loaded.config.trainer;
  parallel::UseDeterministicKernels(trainer.deterministic);
  const auto offer = OfferHere({trainer.device, std::nullopt}, inputs.env.local_rank);
  if (!offer.ok()) throw Error(offer.status().WithContext("trainer.device"));
  return offer->ToText();
}

parallel::DeviceOffer Read(const std::string& offer) {
  return ValueOrThrow(parallel::DeviceOffer::FromText(offer));
}

}  // namespace

Job::Job(const TrainerInputs& inputs, Logger& log)
    : inputs_(inputs),
      log_(log),
      offer_(OfferOfRank(inputs)),
      device_(DeviceOf(Read(offer_))),
      dtype_(inputs.loaded.config.actor_rollout_ref.model.dtype == WeightDtype::kBfloat16
                 ? at::kBFloat16
                 : at::kFloat),
      deadline_(static_cast<int64_t>(inputs.loaded.config.trainer.deadline_seconds * 1000)),
      job_start_(inputs.env.job_start ? *inputs.env.job_start : SystemClock().Monotonic()) {
  if (config().trainer.threads_per_rank > 0)
    at::set_num_threads(static_cast<int>(config().trainer.threads_per_rank));
}

void Job::Phase(const char* phase, int64_t step) const {
  phase_ = phase;
  if (inputs_.status != nullptr) inputs_.status->Set(step, phase);
}

void Job::Connect(SharedFacts facts) {
  const auto& megatron = actor().megatron;
  const auto layout = ValueOrThrow(parallel::Layout::Make(
      inputs_.env.world_size, static_cast<int>(megatron.tensor_model_parallel_size),
      static_cast<int>(megatron.pipeline_model_parallel_size)));
  // A connection to every other rank, at worst, for each of a few groups.
  if (const Status files = RaiseOpenFileLimit(int64_t{2} * inputs_.env.world_size + 256);
      !files.ok() && rank0())
    log_.Warning("{}", files.message());
  store_ = std::make_unique<parallel::Store>(
      ValueOrThrow(parallel::Store::Connect(inputs_.env, deadline_)));
  hang_report_ =
      std::make_unique<parallel::HangReport>(*store_, inputs_.env.rank, inputs_.env.world_size);
  coordinator_ = std::make_unique<StoreCoordinator>(ValueOrThrow(store_->Clone()), inputs_.env.rank,
                                                    inputs_.env.world_size);
  facts.merge(FactsOfRun(inputs_.loaded, device_));
  facts.erase("device");  // about that they come to an agreement
  ThrowIfError(AgreeOnFacts(*coordinator_, facts, deadline_));
  const DeviceWish wish{config().trainer.device, std::nullopt};
  const AgreedDevice agreed =
      ValueOrThrow(AgreeOnDevice(*coordinator_, Read(offer_), wish, deadline_));
  device_ = agreed.device;
  if (rank0() && wish.kind != DeviceKind::kCpu)
    log_.Write(agreed.refused ? LogLevel::kWarning : LogLevel::kInfo, "device: " + agreed.said);
  parallel::ContextOptions options;
  options.cuda = !device_.is_cpu();
  options.device_index = device_.index();
  options.deadline = deadline_;
  options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
  context_ =
      std::make_unique<parallel::ParallelContext>(layout, inputs_.env.rank, *store_, options);
  log_.Info("{}, {} on {}", context_->Overview(), NameOf(config().actor_rollout_ref.model.dtype),
            device_.str());
}

bool Job::StopRequested() const {
  return inputs_.stop_requested != nullptr && inputs_.stop_requested->load() != 0;
}

double Job::SecondsSinceStop() const {
  if (!StopRequested()) return 0;
  const auto now = SystemClock().Monotonic().count();
  return static_cast<double>(now - inputs_.stop_requested->load()) / 1e9;
}

double Job::RunSeconds() const { return Seconds(SystemClock().Monotonic() - job_start_); }

void Job::Leave() {
  context_->world().Barrier();
  context_->Shutdown();
  all_left_ = true;
}

std::unique_ptr<parallel::ProcessGroup> Job::MakeHostGroup(const char* name) const {
  if (device_.is_cpu() || inputs_.env.world_size == 1) return nullptr;
  parallel::GroupOptions options;
  options.name = name;
  for (int r = 0; r < inputs_.env.world_size; ++r) options.ranks.push_back(r);
  options.deadline = deadline_;
  options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
  return parallel::MakeProcessGroup(*store_, inputs_.env.rank, options);
}

Status Job::CauseOf(const std::exception& error) const {
  if (!device_.is_cpu()) {
    const Status lost = ValueOrThrow(parallel::LoadCudaModule())->Lost();
    if (!lost.ok()) return lost;
  }
  return StatusOf(error);
}

std::string Job::WhoHangs(const std::exception& error) const {
  if (hang_report_ == nullptr || inputs_.env.world_size == 1 || all_left_) return {};
  const Status cause = CauseOf(error);
  // Ranks begin to wait, and so give up, within a step of each other.
  constexpr std::chrono::milliseconds kLeast(2'000), kMost(10'000);
  return hang_report_->GiveUp(cause, std::clamp(deadline_ / 4, kLeast, kMost));
}

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
      megatron.sequence_parallel && actor().megatron.tensor_model_parallel_size > 1;
  options.recompute = config().actor_rollout_ref.model.enable_gradient_checkpointing;
  options.bucket_bytes = static_cast<int64_t>(megatron.bucket_megabytes * (1 << 20));
  options.adamw = {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
  options.clip_grad = optim.clip_grad;
  options.offload = {megatron.param_offload, megatron.grad_offload, megatron.optimizer_offload};
  return options;
}

void Job::FillWeights(const ModelDescription& model, TrainEngine& engine) {
  if (model.directory.empty()) {
    engine.Initialize(static_cast<uint64_t>(config().trainer.seed));
    return;
  }
  engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    ThrowIfError(
        ImportWeights(model.directory, model.config, model::Head::kVocabulary, tables.model));
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
