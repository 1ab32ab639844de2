#include "trainer/lm_task.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/hash.h"
#include "trainer/data/batch.h"
#include "trainer/data/sample_order.h"
#include "trainer/device_batch.h"
#include "trainer/flops.h"
#include "trainer/lr_schedule.h"
#include "trainer/metrics.h"

namespace keel::trainer {

namespace {

using model::ModelBatch;

double PeakRssGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

class LmTask {
 public:
  explicit LmTask(Job& job) : job_(job), c_(job.config()), state_(job.state) {}

  RunEnd Main() {
    SetUpData();
    ThrowIfError(FailPoint("trainer.data"));
    job_.Connect();
    ThrowIfError(FailPoint("trainer.connected"));
    BuildModel();
    ThrowIfError(FailPoint("trainer.model"));
    OpenCheckpoints();
    ThrowIfError(FailPoint("trainer.opened"));
    Resume();
    return Loop();
  }

 private:
  // 1. Model shape, tokenizer, samples. Bad input ends the run here, before any connection.
  void SetUpData() {
    job_.Phase("data");
    job_.CheckResumePath();
    tokenizer_ = ValueOrThrow(model::MakeTokenizer(c_.data.tokenizer));
    const DType stored = job_.dtype() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
    source_ =
        ValueOrThrow(ResolveModel(c_.actor_rollout_ref.model.path.value_or(""),
                                  c_.actor_rollout_ref.model.config, stored, tokenizer_.get()));
    if (source_.config.vocab_size < tokenizer_->vocab_size()) {
      throw Error(StatusCode::kConfig,
                  fmt::format("vocab_size {} is less than the tokenizer's {} ids",
                              source_.config.vocab_size, tokenizer_->vocab_size()));
    }
    model::DecoderOptions fit;
    fit.stages = static_cast<int>(job_.actor().megatron.pipeline_model_parallel_size);
    const auto problems = fit.Validate(
        source_.config, static_cast<int>(job_.actor().megatron.tensor_model_parallel_size));
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
    job_.log().Info("data: {} samples to train on, {} to validate on, {} rows left out; {} steps",
                    train_.size(), val_.size(), train_.skipped_rows(), total_steps_);
  }

  // 2. Model, gradients, optimizer.
  void BuildModel() {
    job_.Phase("model");
    const MegatronSection& megatron = job_.actor().megatron;
    const TrainEngineOptions options = job_.EngineOptions(megatron, job_.actor().optim);
    pad_to_multiple_ = options.sequence_parallel ? megatron.tensor_model_parallel_size : 1;
    engine_ = std::make_unique<TrainEngine>(job_.context(), source_.config, options);
    job_.FillWeights(source_, *engine_);
    job_.log().Info("model: {} parameters, {} layers, {} on this rank's stage",
                    source_.config.NumParameters(), source_.config.num_hidden_layers,
                    engine_->decoder().parameters().size());
    engine_->OffloadIdle();
    job_.log().Info("memory: {}", engine_->residency().Report());
  }

  // 3. The run's folder.
  void OpenCheckpoints() {
    job_.OpenCheckpoints();
    job_.set_snapshot([this] { return Snapshot(); });
    engine_->set_before_write([this](const void* begin, size_t bytes) {
      (void)job_.checkpointer().WaitFree(begin, bytes);
    });
    if (c_.trainer.save_freq > 0) job_.PrepareSaves();
  }

  // 4. State of an earlier start, if asked for and there.
  void Resume() {
    checkpoint::LoadRequest request;
    engine_->CopyToHost();  // parts that are not loaded keep their values
    request.roles = {{"actor", engine_->ModelTable(true), engine_->OptimizerTable(true)}};
    request.contents = ContentsOf(job_.actor().checkpoint.load_contents);
    request.config_digest = source_.config.Digest();
    if (auto record = job_.Load(request)) {
      engine_->CopyToDevice();
      if (!request.contents.optimizer) engine_->WeightsChanged();
      if (request.contents.extra) {
        state_ = ValueOrThrow(ParseRunState(record->documents["trainer_state.json"],
                                            record->documents["data_state.json"], identity_));
      }
      job_.log().Info("resumed from {} at step {} ({} samples consumed) in {:.2f} s",
                      record->directory, state_.step, state_.samples_consumed, record->total_s);
    } else if (c_.trainer.resume_mode != "disable") {
      job_.log().Info("no checkpoint in {}: starting from the beginning",
                      c_.trainer.default_local_dir);
    }
    job_.OpenMetrics();
  }

  StepBatch BatchAt(Dataset& data, const std::function<int64_t(int64_t)>& at, int64_t cursor,
                    int64_t count) {
    BatchOptions options;
    options.batch_size = c_.data.train_batch_size;
    options.micro_batch_size = c_.data.micro_batch_size_per_gpu;
    options.dp_rank = job_.context().dp_rank();
    options.dp = job_.context().layout().dp();
    options.pad_to_multiple = pad_to_multiple_;
    return MakeStepBatch(data, at, cursor, count, options);
  }

  // 5. The steps.
  RunEnd Loop() {
    job_.context().world().Barrier();
    at::Tensor rate = at::full({1}, MeasureGemmRate(job_.dtype(), job_.device()),
                               at::TensorOptions().dtype(at::kDouble).device(job_.device()));
    job_.context().world().AllReduce(rate);
    gemm_rate_ = rate.item<double>();
    job_.log().Info(
        "matrix products: {:.1f} GFLOP/s over all ranks, the rate that mfu is a share of",
        gemm_rate_ / 1e9);
    const double flops_per_token =
        TrainFlopsPerToken(source_.config, static_cast<double>(c_.data.max_length));

    const LrScheduleOptions schedule = job_.Schedule(job_.actor().optim, total_steps_);
    if (c_.trainer.val_before_train && state_.step == 0) Validate();
    double mean_step_s = 0;
    while (state_.step < total_steps_) {
      const int64_t step = state_.step + 1;
      job_.log().set_step(step);
      job_.context().set_step(step);
      job_.Phase("train", step);
      Stopwatch step_watch;
      ThrowIfError(FailPoint("step.begin"));

      // 5.1 Batch at the global cursor.
      const int64_t count =
          std::min(c_.data.train_batch_size, total_samples_ - state_.samples_consumed);
      const StepBatch batch = BatchAt(
          train_, [this](int64_t k) { return order_->At(k); }, state_.samples_consumed, count);
      const std::vector<ModelBatch> microbatches = ToDevice(batch.microbatches, job_.device());
      StepMetrics m;
      m.data_s = step_watch.Elapsed();

      // 5.2 Forward, backward, update.
      m.lr = LearningRate(schedule, step);
      const StepNotices notices{job_.WantsToStop(mean_step_s), job_.saving()};
      const StepResult result =
          engine_->Step(microbatches, batch.loss_tokens, m.lr, state_.optimizer_steps + 1, notices);

      ThrowIfError(FailPoint("step.end"));

      // 5.3 The state after the step.
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

      // 5.4 Metrics.
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
      m.save_s = job_.TakeBlockedSeconds();
      const double flops = flops_per_token * static_cast<double>(batch.tokens) / m.step_s;
      m.tflops = flops / 1e12;
      m.mfu = flops / gemm_rate_;
      m.memory_gib = PeakRssGib();
      mean_step_s = mean_step_s == 0 ? m.step_s : 0.9 * mean_step_s + 0.1 * m.step_s;
      m.eta_s = mean_step_s * static_cast<double>(total_steps_ - step);
      if (MetricsWriter* metrics = job_.metrics()) {
        m.sample_digest = SampleDigest(state_.samples_consumed - count, count);
        metrics->Step(m, c_.trainer.log_freq, job_.log());
      }
      job_.AfterStep(m.step_s);
      if (state_.consecutive_skips >= c_.trainer.max_consecutive_skips) {
        throw Error(StatusCode::kInvalidData,
                    fmt::format("loss or gradient norm was not finite in {} steps in a row up to "
                                "step {} (loss {}, norm {}); lower "
                                "actor_rollout_ref.actor.optim.lr or look at the data, and resume "
                                "from an older checkpoint",
                                state_.consecutive_skips, step, result.loss, result.grad_norm));
      }

      // 5.5 Validate and save when due.
      const bool last = step == total_steps_;
      if (c_.trainer.test_freq > 0 && (step % c_.trainer.test_freq == 0 || last)) Validate();
      if ((last || result.stop) && c_.trainer.save_freq > 0) {
        job_.SaveLast(last);
      } else if (job_.SaveDue(last)) {
        job_.Save(result.busy);
      }
      if (result.stop && !last) return job_.Preempted();
    }
    if (state_.step == total_steps_) job_.log().Info("all {} steps are done", total_steps_);
    job_.Finish();
    return RunEnd::kFinished;
  }

  std::string SampleDigest(int64_t begin, int64_t count) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(train_.Get(order_->At(begin + i)).id);
    return Hash128(std::as_bytes(std::span(ids))).ToHex();
  }

  void Validate() {
    if (val_.size() == 0) return;
    job_.Phase("validate");
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
      loss += engine_->SummedLoss(ToDevice(batch.microbatches, job_.device()));
      targets += batch.loss_tokens;
      tokens += batch.tokens;
    }
    moves.param_offload = residency.Restore(StateClass::kParams, params_before);
    const double mean = loss / static_cast<double>(targets);
    const double judged = c_.trainer.keep_best_metric == "val/perplexity" ? std::exp(mean) : mean;
    validated_.reset();
    if (std::isfinite(judged)) validated_ = {state_.step, judged};
    if (MetricsWriter* metrics = job_.metrics())
      metrics->Validation(state_.step, mean, tokens, watch.Elapsed(), moves, job_.log());
  }

  checkpoint::SaveRequest Snapshot() {
    engine_->CopyToHost();
    checkpoint::SaveRequest request = job_.NewSaveRequest(source_);
    request.roles = {{"actor", engine_->ModelTable(false), engine_->OptimizerTable(false),
                      engine_->ModelOnHost(), engine_->OptimizerOnHost()}};
    // A result of other weights than these would make the wrong checkpoint the best.
    if (validated_ && validated_->first == state_.step) request.metric = validated_->second;
    if (job_.rank0()) {
      request.documents.push_back({"trainer_state.json", TrainerStateJson(state_), true});
      request.documents.push_back({"data_state.json", DataStateJson(state_, identity_), true});
    }
    return request;
  }

  Job& job_;
  const Config& c_;
  RunState& state_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  ModelSource source_;
  Dataset train_, val_;
  std::unique_ptr<SampleOrder> order_;
  DataIdentity identity_;
  int64_t total_steps_ = 0;
  int64_t total_samples_ = 0;
  int64_t pad_to_multiple_ = 1;
  std::unique_ptr<TrainEngine> engine_;
  double gemm_rate_ = 0;
  std::optional<std::pair<int64_t, double>> validated_;  // step and value of keep_best_metric
};

}  // namespace

RunEnd RunLmTask(Job& job) { return LmTask(job).Main(); }

}  // namespace keel::trainer
