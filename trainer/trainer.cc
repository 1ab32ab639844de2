#include "trainer/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "checkpoint/checkpointer.h"
#include "checkpoint/names.h"
#include "common/clock.h"
#include "common/fail_point.h"
#include "common/file_system.h"
#include "common/hash.h"
#include "parallel/context.h"
#include "parallel/cuda_module.h"
#include "trainer/data/batch.h"
#include "trainer/data/sample_order.h"
#include "trainer/flops.h"
#include "trainer/group_channel.h"
#include "trainer/lr_schedule.h"
#include "trainer/metrics.h"
#include "trainer/model_source.h"
#include "trainer/run_state.h"
#include "trainer/save_session.h"
#include "trainer/store_coordinator.h"
#include "trainer/train_engine.h"

namespace keel::trainer {

namespace {

using model::ModelBatch;

bool Has(const std::vector<std::string>& list, const char* item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

checkpoint::Contents ContentsOf(const std::vector<std::string>& names) {
  checkpoint::Contents contents;
  contents.model = Has(names, "model");
  contents.optimizer = Has(names, "optimizer");
  contents.extra = Has(names, "extra");
  contents.hf_model = Has(names, "hf_model");
  return contents;
}

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

ModelBatch ToDevice(const MicroBatch& batch, at::Device device) {
  ModelBatch out;
  const auto tensor = [&](const std::vector<int32_t>& values, at::ScalarType type) {
    return at::tensor(values, at::kInt).to(type).to(device);
  };
  out.ids = tensor(batch.ids, at::kLong);
  out.targets = tensor(batch.targets, at::kLong);
  out.packing.positions = tensor(batch.positions, at::kInt);
  out.packing.boundaries = batch.boundaries;
  return out;
}

double PeakRssGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

// One job's id for its run folder, kept there from its first start on.
std::string RunId(FileSystem& fs) {
  const auto known = ReadFile(fs, "run_id", 64);
  if (known.ok() && !known->empty()) return known->substr(0, known->find('\n'));
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", device());
  ThrowIfError(ReplaceFileDurably(fs, "run_id", id + "\n"));
  return id;
}

class Run {
 public:
  Run(const TrainerInputs& inputs, Logger& log)
      : inputs_(inputs),
        c_(inputs.loaded.config),
        log_(log),
        device_(ResolveDevice(c_.trainer.device, inputs.env.local_rank)) {
    if (c_.trainer.threads_per_rank > 0)
      at::set_num_threads(static_cast<int>(c_.trainer.threads_per_rank));
    deadline_ = std::chrono::milliseconds(static_cast<int64_t>(c_.trainer.deadline_seconds * 1000));
  }

  RunEnd Main() {
    SetUpData();
    ThrowIfError(FailPoint("trainer.data"));
    Connect();
    ThrowIfError(FailPoint("trainer.connected"));
    BuildModel();
    ThrowIfError(FailPoint("trainer.model"));
    OpenCheckpoints();
    ThrowIfError(FailPoint("trainer.opened"));
    Resume();
    return Loop();
  }

 private:
  bool rank0() const { return inputs_.env.rank == 0; }
  const ActorSection& actor() const { return c_.actor_rollout_ref.actor; }
  void Phase(const char* phase) {
    if (inputs_.status != nullptr) inputs_.status->Set(state_.step, phase);
  }

  // A checkpoint by name that is not there.
  void CheckResumePath() const {
    if (c_.trainer.resume_mode != "resume_path") return;
    const auto fs = OpenPosixFileSystem(*c_.trainer.resume_from_path, false);
    if (!fs.ok()) throw Error(fs.status().WithContext("trainer.resume_from_path"));
    const auto manifest = (*fs)->Stat(checkpoint::kManifestName);
    if (!manifest.ok()) {
      throw Error(manifest.status().WithContext(
          "trainer.resume_from_path: expected a checkpoint, <run folder>/global_step_<N>"));
    }
  }

  // 1. Model shape, tokenizer, samples. Bad input ends the run here, before any connection.
  void SetUpData() {
    Phase("data");
    CheckResumePath();
    tokenizer_ = ValueOrThrow(model::MakeTokenizer(c_.data.tokenizer));
    dtype_ = c_.actor_rollout_ref.model.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
    const DType stored = dtype_ == at::kBFloat16 ? DType::kBF16 : DType::kF32;
    source_ =
        ValueOrThrow(ResolveModel(c_.actor_rollout_ref.model.path.value_or(""),
                                  c_.actor_rollout_ref.model.config, stored, tokenizer_.get()));
    if (source_.config.vocab_size < tokenizer_->vocab_size()) {
      throw Error(StatusCode::kConfig,
                  fmt::format("vocab_size {} is less than the tokenizer's {} ids",
                              source_.config.vocab_size, tokenizer_->vocab_size()));
    }
    model::DecoderOptions fit;
    fit.stages = static_cast<int>(actor().megatron.pipeline_model_parallel_size);
    const auto problems =
        fit.Validate(source_.config, static_cast<int>(actor().megatron.tensor_model_parallel_size));
    if (!problems.empty())
      throw Error(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
    if (c_.data.max_length > source_.config.max_position_embeddings) {
      throw Error(StatusCode::kConfig,
                  fmt::format("data.max_length {} is above the model's max_position_embeddings {}",
                              c_.data.max_length, source_.config.max_position_embeddings));
    }

    DatasetOptions options;
    options.sft = c_.trainer.task == "sft";
    options.max_length = c_.data.max_length;
    options.truncation = c_.data.truncation == "right"  ? Truncation::kRight
                         : c_.data.truncation == "left" ? Truncation::kLeft
                         : c_.data.truncation == "skip" ? Truncation::kSkip
                                                        : Truncation::kError;
    options.vocab_size = source_.config.vocab_size;
    options.keys = {c_.data.text_key, c_.data.prompt_key, c_.data.response_key,
                    c_.data.messages_key};
    train_ = ValueOrThrow(Dataset::Load(c_.data.train_files, options, *tokenizer_));
    if (!c_.data.val_files.empty())
      val_ = ValueOrThrow(Dataset::Load(c_.data.val_files, options, *tokenizer_));
    const auto seed = static_cast<uint64_t>(c_.trainer.seed);
    if (c_.data.val_split > 0) val_ = train_.SplitOff(c_.data.val_split, seed);
    if (train_.size() == 0)
      throw Error(StatusCode::kInvalidData, "data.val_split leaves no sample to train on");
    order_ = std::make_unique<SampleOrder>(train_.size(), seed, c_.data.shuffle);
    identity_ = {train_.digest().ToHex(), train_.size(), c_.trainer.seed, c_.data.shuffle};
    if (c_.trainer.total_training_steps) {
      total_steps_ = *c_.trainer.total_training_steps;
      total_samples_ = total_steps_ * c_.data.train_batch_size;
    } else {
      total_samples_ = std::max<int64_t>(
          1, std::llround(*c_.trainer.total_epochs * static_cast<double>(train_.size())));
      total_steps_ = (total_samples_ + c_.data.train_batch_size - 1) / c_.data.train_batch_size;
    }
    log_.Info("data: {} samples to train on, {} to validate on, {} rows left out; {} steps",
              train_.size(), val_.size(), train_.skipped_rows(), total_steps_);
  }

  // 2. Store and process groups.
  void Connect() {
    Phase("connect");
    const auto& megatron = actor().megatron;
    const auto layout = ValueOrThrow(parallel::Layout::Make(
        inputs_.env.world_size, static_cast<int>(megatron.tensor_model_parallel_size),
        static_cast<int>(megatron.pipeline_model_parallel_size)));
    store_ = std::make_unique<parallel::Store>(
        ValueOrThrow(parallel::Store::Connect(inputs_.env, deadline_)));
    parallel::ContextOptions options;
    options.cuda = !device_.is_cpu();
    options.device_index = device_.index();
    options.deadline = deadline_;
    options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
    context_ =
        std::make_unique<parallel::ParallelContext>(layout, inputs_.env.rank, *store_, options);
    log_.Info("{}, {} on {}", context_->Overview(), c_.actor_rollout_ref.model.dtype,
              device_.str());
  }

  // 3. Model, gradients, optimizer.
  void BuildModel() {
    Phase("model");
    TrainEngineOptions options;
    options.dtype = dtype_;
    options.device = device_;
    options.sequence_parallel =
        actor().megatron.sequence_parallel && actor().megatron.tensor_model_parallel_size > 1;
    options.recompute = c_.actor_rollout_ref.model.enable_gradient_checkpointing;
    options.bucket_bytes = static_cast<int64_t>(actor().megatron.bucket_megabytes * (1 << 20));
    options.adamw = {actor().optim.betas[0], actor().optim.betas[1], actor().optim.eps,
                     actor().optim.weight_decay};
    options.clip_grad = actor().optim.clip_grad;
    options.offload = {actor().megatron.param_offload, actor().megatron.grad_offload,
                       actor().megatron.optimizer_offload};
    pad_to_multiple_ = options.sequence_parallel ? actor().megatron.tensor_model_parallel_size : 1;
    engine_ = std::make_unique<TrainEngine>(*context_, source_.config, options);
    if (source_.directory.empty()) {
      engine_->Initialize(static_cast<uint64_t>(c_.trainer.seed));
    } else {
      engine_->CopyToHost();
      ThrowIfError(ImportWeights(source_.directory, engine_->ModelTable(true)));
      engine_->CopyToDevice();
      engine_->WeightsChanged();
    }
    log_.Info("model: {} parameters, {} layers, {} on this rank's stage",
              source_.config.NumParameters(), source_.config.num_hidden_layers,
              engine_->decoder().parameters().size());
    engine_->OffloadIdle();
    log_.Info("memory: {}", engine_->residency().Report());
  }

  // 4. The run's folder.
  void OpenCheckpoints() {
    fs_ = ValueOrThrow(OpenPosixFileSystem(c_.trainer.default_local_dir, true));
    coordinator_ = std::make_unique<StoreCoordinator>(ValueOrThrow(store_->Clone()),
                                                      inputs_.env.rank, inputs_.env.world_size);
    checkpoint::CheckpointOptions options;
    options.run_id = ValueOrThrow(
        checkpoint::Broadcast(*coordinator_, "run_id", rank0() ? RunId(*fs_) : "", deadline_));
    if (c_.trainer.max_ckpts_to_keep)
      options.max_ckpts_to_keep = static_cast<int>(*c_.trainer.max_ckpts_to_keep);
    options.remove_previous_ckpt_in_save = c_.trainer.remove_previous_ckpt_in_save;
    options.retention.keep_best = static_cast<int>(c_.trainer.keep_best_ckpts);
    options.retention.higher_is_better = c_.trainer.keep_best_mode == "max";
    options.retention.keep_every = c_.trainer.keep_every_steps;
    options.io = actor().checkpoint.io;
    options.dist_ckpt_workers = static_cast<int>(actor().checkpoint.dist_ckpt_workers);
    options.host_memory_cap = actor().checkpoint.staging.host_memory_cap;
    if (actor().checkpoint.async_save && options.dist_ckpt_workers > 1 && rank0()) {
      log_.Warning(
          "actor_rollout_ref.actor.checkpoint.dist_ckpt_workers: {} threads a rank write beside "
          "the "
          "training and take its cores; 1 is enough for most disks",
          options.dist_ckpt_workers);
    }
    options.deadline = deadline_;
    options.load_threads = static_cast<int>(std::max<int64_t>(1, c_.trainer.threads_per_rank));
    options_ = options;
    checkpointer_ = std::make_unique<checkpoint::Checkpointer>(*fs_, *coordinator_, SystemClock(),
                                                               log_, options);
    ThrowIfError(checkpointer_->Open());
    saves_ = std::make_unique<SaveSession>(*checkpointer_, actor().checkpoint, log_);
    engine_->set_before_write(
        [this](const void* begin, size_t bytes) { (void)checkpointer_->WaitFree(begin, bytes); });
    if (c_.trainer.save_freq > 0) PrepareSaves();
  }

  // What the first save would otherwise pay for, and whether the disk will hold what is to be kept.
  void PrepareSaves() {
    const checkpoint::DiskForecast disk =
        ValueOrThrow(checkpointer_->Prepare(SaveRequestNow(), actor().checkpoint.async_save));
    if (rank0()) {
      log_.Info("a checkpoint takes {:.1f} MiB; staging memory {:.1f} MiB a rank",
                static_cast<double>(disk.checkpoint_bytes) / (1 << 20),
                static_cast<double>(checkpointer_->staging_bytes()) / (1 << 20));
    }
    if (disk.needed_bytes <= disk.free_bytes) return;
    const std::string text = fmt::format(
        "{}: checkpoints of {} bytes will need {} more bytes, {} are free: make room, set "
        "trainer.max_ckpts_to_keep, or set trainer.disk_check to warn",
        c_.trainer.default_local_dir, disk.checkpoint_bytes, disk.needed_bytes, disk.free_bytes);
    if (c_.trainer.disk_check == "refuse") throw Error(StatusCode::kNoSpace, text);
    if (rank0()) log_.Warning("{}", text);
  }

  // 5. State of an earlier start, if asked for and there.
  void Resume() {
    if (c_.trainer.resume_mode != "disable") {
      Phase("load");
      checkpoint::LoadRequest request;
      engine_->CopyToHost();  // parts that are not loaded keep their values
      request.roles = {{"actor", engine_->ModelTable(true), engine_->OptimizerTable(true)}};
      request.contents = ContentsOf(actor().checkpoint.load_contents);
      request.config_digest = source_.config.Digest();
      const std::optional<checkpoint::LoadRecord> record = LoadCheckpoint(request);
      if (record) {
        engine_->CopyToDevice();
        if (!request.contents.optimizer) engine_->WeightsChanged();
        if (request.contents.extra) {
          const auto document = [&](const char* name) {
            const auto found = record->documents.find(name);
            return found == record->documents.end() ? std::string() : found->second;
          };
          state_ = ValueOrThrow(ParseRunState(document("trainer_state.json"),
                                              document("data_state.json"), identity_));
        }
        log_.Info("resumed from {} at step {} ({} samples consumed) in {:.2f} s", record->directory,
                  state_.step, state_.samples_consumed, record->total_s);
      } else {
        log_.Info("no checkpoint in {}: starting from the beginning", c_.trainer.default_local_dir);
      }
    }
    if (rank0()) {
      ThrowIfError(ReplaceFileDurably(*fs_, "config.yaml", inputs_.loaded.resolved));
      metrics_ = std::make_unique<MetricsWriter>(ValueOrThrow(
          MetricsWriter::Open(c_.trainer.default_local_dir, state_.step,
                              Has(c_.trainer.logger, "jsonl"), Has(c_.trainer.logger, "console"))));
    }
  }

  std::optional<checkpoint::LoadRecord> LoadCheckpoint(checkpoint::LoadRequest& request) {
    request.in_place = true;  // a load that fails ends this process
    // The ranks hand each other what they read, as host memory.
    std::unique_ptr<parallel::ProcessGroup> host_group;
    if (!device_.is_cpu() && inputs_.env.world_size > 1) {
      parallel::GroupOptions options;
      options.name = "load";
      for (int r = 0; r < inputs_.env.world_size; ++r) options.ranks.push_back(r);
      options.deadline = deadline_;
      options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
      host_group = parallel::MakeProcessGroup(*store_, inputs_.env.rank, options);
    }
    GroupChannel channel(host_group ? *host_group : context_->world());
    request.channel = &channel;
    std::optional<checkpoint::LoadRecord> record = c_.trainer.resume_mode == "resume_path"
                                                       ? LoadFromPath(request)
                                                       : ValueOrThrow(checkpointer_->Load(request));
    if (host_group) host_group->Shutdown();
    return record;
  }

  // A checkpoint by name, of this run's folder or of another.
  std::optional<checkpoint::LoadRecord> LoadFromPath(checkpoint::LoadRequest& request) {
    std::string path = *c_.trainer.resume_from_path;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    const std::string parent =
        slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(1, slash));
    request.resume_path = slash == std::string::npos ? path : path.substr(slash + 1);
    const auto fs = ValueOrThrow(OpenPosixFileSystem(parent, false));
    checkpoint::Checkpointer other(*fs, *coordinator_, SystemClock(), log_, options_);
    return ValueOrThrow(other.Load(request));
  }

  StepBatch BatchAt(Dataset& data, const std::function<int64_t(int64_t)>& at, int64_t cursor,
                    int64_t count) {
    BatchOptions options;
    options.batch_size = c_.data.train_batch_size;
    options.micro_batch_size = c_.data.micro_batch_size_per_gpu;
    options.dp_rank = context_->dp_rank();
    options.dp = context_->layout().dp();
    options.pad_to_multiple = pad_to_multiple_;
    return MakeStepBatch(data, at, cursor, count, options);
  }

  std::vector<ModelBatch> ToDeviceAll(const StepBatch& step) {
    std::vector<ModelBatch> batches;
    for (const MicroBatch& batch : step.microbatches) batches.push_back(ToDevice(batch, device_));
    return batches;
  }

  // 6. The steps.
  RunEnd Loop() {
    context_->world().Barrier();
    at::Tensor rate = at::full({1}, MeasureGemmRate(dtype_, device_),
                               at::TensorOptions().dtype(at::kDouble).device(device_));
    context_->world().AllReduce(rate);
    gemm_rate_ = rate.item<double>();
    log_.Info("matrix products: {:.1f} GFLOP/s over all ranks, the rate that mfu is a share of",
              gemm_rate_ / 1e9);
    const double flops_per_token =
        TrainFlopsPerToken(source_.config, static_cast<double>(c_.data.max_length));

    LrScheduleOptions schedule;
    schedule.lr = actor().optim.lr;
    schedule.min_lr = actor().optim.min_lr;
    const std::string& style = actor().optim.lr_decay_style;
    schedule.style = style == "linear"   ? LrDecayStyle::kLinear
                     : style == "cosine" ? LrDecayStyle::kCosine
                     : style == "wsd"    ? LrDecayStyle::kWsd
                                         : LrDecayStyle::kConstant;
    schedule.warmup_steps = actor().optim.lr_warmup_steps;
    schedule.decay_steps = actor().optim.lr_decay_steps.value_or(total_steps_);
    schedule.wsd_decay_steps =
        actor().optim.lr_wsd_decay_steps.value_or(std::max<int64_t>(1, total_steps_ / 10));

    if (c_.trainer.val_before_train && state_.step == 0) Validate();
    double mean_step_s = 0;
    while (state_.step < total_steps_) {
      const int64_t step = state_.step + 1;
      log_.set_step(step);
      context_->set_step(step);
      if (inputs_.status != nullptr) inputs_.status->Set(step, "train");
      Stopwatch step_watch;
      ThrowIfError(FailPoint("step.begin"));

      // 6.1 Batch at the global cursor.
      const int64_t count =
          std::min(c_.data.train_batch_size, total_samples_ - state_.samples_consumed);
      const StepBatch batch = BatchAt(
          train_, [this](int64_t k) { return order_->At(k); }, state_.samples_consumed, count);
      const std::vector<ModelBatch> microbatches = ToDeviceAll(batch);
      StepMetrics m;
      m.data_s = step_watch.Elapsed();

      // 6.2 Forward, backward, update.
      m.lr = LearningRate(schedule, step);
      const StepNotices notices{StopRequested() || DeadlineNear(mean_step_s), saves_->busy()};
      const StepResult result =
          engine_->Step(microbatches, batch.loss_tokens, m.lr, state_.optimizer_steps + 1, notices);

      ThrowIfError(FailPoint("step.end"));

      // 6.3 The state after the step.
      state_.step = step;
      state_.samples_consumed += count;
      state_.tokens_consumed += batch.tokens;
      if (result.skipped) {
        ++state_.skipped_steps;
        ++state_.consecutive_skips;
      } else {
        ++state_.optimizer_steps;
        state_.consecutive_skips = 0;
      }

      // 6.4 Metrics.
      m.step = step;
      m.total_steps = total_steps_;
      m.loss = result.loss;
      m.grad_norm = result.grad_norm;
      m.skipped = result.skipped;
      m.skipped_steps = state_.skipped_steps;
      m.tokens = batch.tokens;
      m.tokens_consumed = state_.tokens_consumed;
      m.samples_consumed = state_.samples_consumed;
      m.step_s = step_watch.Elapsed();
      m.forward_backward_s = result.forward_backward_s;
      m.reduce_s = result.reduce_s;
      m.optimizer_s = result.optimizer_s;
      m.moves = result.moves;
      m.save_s = std::exchange(blocked_s_, 0.0);
      const double flops = flops_per_token * static_cast<double>(batch.tokens) / m.step_s;
      m.tflops = flops / 1e12;
      m.mfu = flops / gemm_rate_;
      m.memory_gib = PeakRssGib();
      mean_step_s = mean_step_s == 0 ? m.step_s : 0.9 * mean_step_s + 0.1 * m.step_s;
      m.eta_s = mean_step_s * static_cast<double>(total_steps_ - step);
      if (metrics_) {
        m.sample_digest = SampleDigest(state_.samples_consumed - count, count);
        metrics_->Step(m, c_.trainer.log_freq, log_);
      }
      NoteSaves(saves_->AfterStep(m.step_s));
      if (state_.consecutive_skips >= c_.trainer.max_consecutive_skips) {
        throw Error(StatusCode::kInvalidData,
                    fmt::format("loss or gradient norm was not finite in {} steps in a row up to "
                                "step {} (loss {}, norm {}); lower "
                                "actor_rollout_ref.actor.optim.lr or look at the data, and resume "
                                "from an older checkpoint",
                                state_.consecutive_skips, step, result.loss, result.grad_norm));
      }

      // 6.5 Validate and save when due.
      const bool last = step == total_steps_;
      if (c_.trainer.test_freq > 0 && (step % c_.trainer.test_freq == 0 || last)) Validate();
      const bool due = c_.trainer.save_freq > 0 && (step % c_.trainer.save_freq == 0 || last);
      const bool ends = last || result.stop;
      if (ends && c_.trainer.save_freq > 0) {
        SaveLast(last);
      } else if (due) {
        Save(result.busy);
      }
      if (result.stop && !last) {
        log_.Info("asked to stop: ends after step {}; the next start goes on from {}", step,
                  saves_->saved_step() == step ? "here" : "the newest checkpoint");
        Finish();
        return RunEnd::kPreempted;
      }
    }
    if (state_.step == total_steps_) log_.Info("all {} steps are done", total_steps_);
    Finish();
    return RunEnd::kFinished;
  }

  std::string SampleDigest(int64_t begin, int64_t count) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(train_.Get(order_->At(begin + i)).id);
    return Hash128(std::as_bytes(std::span(ids))).ToHex();
  }

  void Validate() {
    if (val_.size() == 0) return;
    Phase("validate");
    const Stopwatch watch;
    double loss = 0;
    int64_t targets = 0;
    int64_t tokens = 0;
    Residency& residency = engine_->residency();
    const Place params_before = residency.place(StateClass::kParams);
    MoveSeconds moves;
    moves.param_load = residency.LoadToRead(StateClass::kParams);
    for (int64_t begin = 0; begin < val_.size(); begin += c_.data.train_batch_size) {
      const int64_t count = std::min(c_.data.train_batch_size, val_.size() - begin);
      const StepBatch batch = BatchAt(
          val_, [](int64_t k) { return k; }, begin, count);
      loss += engine_->SummedLoss(ToDeviceAll(batch));
      targets += batch.loss_tokens;
      tokens += batch.tokens;
    }
    moves.param_offload = residency.Restore(StateClass::kParams, params_before);
    const double mean = loss / static_cast<double>(targets);
    const double judged = c_.trainer.keep_best_metric == "val/perplexity" ? std::exp(mean) : mean;
    validated_.reset();
    if (std::isfinite(judged)) validated_ = {state_.step, judged};
    if (metrics_) metrics_->Validation(state_.step, mean, tokens, watch.Elapsed(), moves, log_);
  }

  checkpoint::SaveRequest SaveRequestNow() {
    checkpoint::SaveRequest request;
    request.step = state_.step;
    engine_->CopyToHost();
    request.roles = {{"actor", engine_->ModelTable(false), engine_->OptimizerTable(false),
                      engine_->ModelOnHost(), engine_->OptimizerOnHost()}};
    request.contents = ContentsOf(actor().checkpoint.save_contents);
    request.config_digest = source_.config.Digest();
    // A result of other weights than these would make the wrong checkpoint the best.
    if (validated_ && validated_->first == state_.step) request.metric = validated_->second;
    const auto& layout = context_->layout();
    request.layout = {{"tp", layout.tp()}, {"dp", layout.dp()}, {"pp", layout.pp()}};
    if (rank0()) {
      request.documents = source_.documents;
      request.documents.push_back({"trainer_state.json", TrainerStateJson(state_), true});
      request.documents.push_back({"data_state.json", DataStateJson(state_, identity_), true});
      request.documents.push_back({"config.yaml", inputs_.loaded.resolved, false});
    }
    return request;
  }

  // A failed save, which the checkpointer has logged, does not stop the run: the last good
  // checkpoint is untouched.
  void Save(bool busy_somewhere) {
    Phase("save");
    const Stopwatch watch;
    saves_->Save(SaveRequestNow(), busy_somewhere);
    blocked_s_ = watch.Elapsed();
    Phase("train");
  }

  // Before the run ends: returns when the step is on the disk, or when it cannot be any more.
  void SaveLast(bool finished) {
    Phase("save");
    NoteSaves(saves_->Finish());
    if (saves_->saved_step() == state_.step) return;
    if (!finished && !FitsIntoGrace()) return;
    saves_->SaveAndWait(SaveRequestNow());
    NoteSaves(saves_->Finish());
  }

  void NoteSaves(const std::vector<checkpoint::SaveResult>& ended) {
    if (!metrics_) return;
    for (const checkpoint::SaveResult& result : ended)
      metrics_->Save(state_.step, result, saves_->skipped(), saves_->superseded());
  }

  bool StopRequested() const {
    return inputs_.stop_requested != nullptr && inputs_.stop_requested->load() != 0;
  }

  // Rank 0's view of the run time; the others hear of it with the step.
  bool DeadlineNear(double mean_step_s) const {
    if (!c_.trainer.save_before_deadline || !rank0()) return false;
    const auto limit = static_cast<double>(*ParseRunTime(*c_.trainer.save_before_deadline));
    // This step and one that is twice as slow, and a save that is half as slow again.
    return run_watch_.Elapsed() + 3 * mean_step_s + 1.5 * checkpointer_->expected_save_s() >= limit;
  }

  // Whether a save, as long as past ones, ends before whoever asked us to stop loses patience.
  // Collective: the rank that was asked first counts.
  bool FitsIntoGrace() {
    if (!c_.trainer.preemption_grace_seconds) return true;
    double waited = 0;
    if (StopRequested()) {
      const auto now = SystemClock().Monotonic().count();
      waited = static_cast<double>(now - inputs_.stop_requested->load()) / 1e9;
    }
    const std::vector<std::string> all = ValueOrThrow(checkpoint::AllGather(
        *coordinator_, fmt::format("grace/{}", state_.step), std::to_string(waited), deadline_));
    for (const std::string& one : all) waited = std::max(waited, std::stod(one));
    const double left = *c_.trainer.preemption_grace_seconds - waited;
    const double expected = 1.2 * checkpointer_->expected_save_s();
    if (expected <= left) return true;
    log_.Warning(
        "step {} is not saved: past saves took {:.1f} s, {:.1f} s are left of "
        "trainer.preemption_grace_seconds",
        state_.step, expected / 1.2, left);
    return false;
  }

  void Finish() {
    ThrowIfError(FailPoint("trainer.close"));
    NoteSaves(saves_->Finish());
    ThrowIfError(checkpointer_->Close());
    context_->world().Barrier();
    context_->Shutdown();
    if (c_.trainer.save_freq > 0) {
      ThrowIfError(saves_->last_status().WithContext(
          fmt::format("the state of the last step, {}, is not saved", state_.step)));
    }
  }

  const TrainerInputs& inputs_;
  const Config& c_;
  Logger& log_;
  at::Device device_;
  std::chrono::milliseconds deadline_{};
  std::unique_ptr<model::Tokenizer> tokenizer_;
  at::ScalarType dtype_ = at::kFloat;
  ModelSource source_;
  Dataset train_, val_;
  std::unique_ptr<SampleOrder> order_;
  DataIdentity identity_;
  int64_t total_steps_ = 0;
  int64_t total_samples_ = 0;
  int64_t pad_to_multiple_ = 1;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::ParallelContext> context_;
  std::unique_ptr<TrainEngine> engine_;
  std::unique_ptr<FileSystem> fs_;
  std::unique_ptr<StoreCoordinator> coordinator_;
  checkpoint::CheckpointOptions options_;
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;
  std::unique_ptr<SaveSession> saves_;
  std::unique_ptr<MetricsWriter> metrics_;  // rank 0
  RunState state_;
  double gemm_rate_ = 0;
  const Stopwatch run_watch_;
  double blocked_s_ = 0;  // of the last save, until the next step's metrics
  std::optional<std::pair<int64_t, double>> validated_;  // step and value of keep_best_metric
};

}  // namespace

RunEnd RunTraining(const TrainerInputs& inputs, Logger& log) {
  const auto problems = ValidateConfig(inputs.loaded.config, inputs.env.world_size);
  if (!problems.empty()) {
    throw Error(StatusCode::kConfig, fmt::format("the configuration does not hold together:\n  {}",
                                                 fmt::join(problems, "\n  ")));
  }
  return Run(inputs, log).Main();
}

}  // namespace keel::trainer
