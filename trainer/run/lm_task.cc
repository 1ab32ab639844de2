#include "trainer/run/lm_task.h"

#include <fmt/format.h>

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
#include "trainer/data/dataset.h"
#include "trainer/engine/device_batch.h"
#include "trainer/engine/flops.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/lm_inputs.h"
#include "trainer/run/metrics.h"
#include "trainer/run/task.h"

namespace keel::trainer {

namespace {

using model::ModelBatch;

class LmTask : public Task {
 public:
  using Task::Task;

 private:
  void LoadData() override {
    RunData<Dataset> data = ValueOrThrow(LoadLmData(c_, source_));
    WarnOfData(data.Warnings());
    train_ = std::move(data.train);
    val_ = std::move(data.val);
    SetValidation(val_.digest(), val_.size());
    SetData(train_.digest(), train_.size());
    SetSteps();
    job_.log().Info("data: {} samples to train on, {} to validate on, {} rows left out; {} steps",
                    train_.size(), val_.size(), train_.skipped_rows(), total_steps_);
  }

  void BuildModels() override {
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

  std::vector<Role> SavedRoles() override { return {{"actor", engine_.get()}}; }

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

  void Restored(bool /*restored*/) override { RecountSteps(); }

  void BeforeSteps() override {
    at::Tensor rate = at::full({1}, MeasureGemmRate(job_.dtype(), job_.device()),
                               at::TensorOptions().dtype(at::kDouble).device(job_.device()));
    job_.context().world().AllReduce(rate);
    gemm_rate_ = rate.item<double>();
    job_.log().Info(
        "matrix products: {:.1f} GFLOP/s over all ranks, the rate that mfu is a share of",
        gemm_rate_ / 1e9);
    flops_per_token_ = TrainFlopsPerToken(source_.config, static_cast<double>(c_.data.max_length));
    schedule_ = job_.Schedule(job_.actor().optim, "actor_rollout_ref.actor.optim", total_steps_);
  }

  StepEnd Step(int64_t step) override {
    // 1. Batch at the global cursor.
    const Stopwatch watch;
    const int64_t count = BatchCount();
    const StepBatch batch = BatchAt(
        train_, [this](int64_t k) { return order_->At(k); }, state_.samples_consumed, count);
    const std::vector<ModelBatch> microbatches = ToDevice(batch.microbatches, job_.device());
    StepMetrics m;
    m.data_s = watch.Elapsed();

    // 2. Forward, backward, update.
    m.lr = LearningRate(schedule_, step);
    const StepResult result =
        engine_->Step(microbatches, batch.loss_tokens, m.lr, state_.optimizer_steps + 1, Notices());
    ThrowIfError(FailPoint("step.end"));
    Advance(step, count, batch.tokens);
    CountUpdates(result.skipped ? 0 : 1, result.skipped ? 1 : 0);

    // 3. Metrics.
    m.step = step;
    m.total_steps = total_steps_;
    m.loss = result.loss;
    m.grad_norm = result.grad_norm;
    m.skipped = result.skipped;
    m.skipped_steps = state_.skipped_steps;
    m.tokens = batch.tokens;
    m.tokens_consumed = state_.tokens_consumed;
    m.samples_consumed = state_.samples_consumed;
    m.step_s = EndTiming();
    m.forward_backward_s = result.forward_backward_s;
    m.reduce_s = result.reduce_s;
    m.optimizer_s = result.optimizer_s;
    m.moves = result.moves;
    m.save_s = job_.TakeBlockedSeconds();
    const double flops = flops_per_token_ * static_cast<double>(batch.tokens) / m.step_s;
    m.tflops = flops / 1e12;
    m.mfu = flops / gemm_rate_;
    m.memory_gib = PeakRssGib();
    m.eta_s = RemainingSeconds();
    if (MetricsWriter* metrics = job_.metrics()) {
      m.sample_digest = SampleDigest(state_.samples_consumed - count, count);
      metrics->Step(m, c_.trainer.log_freq, job_.log());
    }
    return {result.stop, result.busy, result.loss, result.grad_norm};
  }

  std::string SampleDigest(int64_t begin, int64_t count) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(train_.Get(order_->At(begin + i)).id);
    return Hash128(std::as_bytes(std::span(ids))).ToHex();
  }

  std::optional<double> Validate() override {
    if (val_.size() == 0) return std::nullopt;
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
    if (MetricsWriter* metrics = job_.metrics())
      metrics->Validation(state_.step, mean, tokens, watch.Elapsed(), moves, job_.log());
    return c_.trainer.keep_best_metric == BestMetric::kPerplexity ? std::exp(mean) : mean;
  }

  Dataset train_, val_;
  int64_t pad_to_multiple_ = 1;
  std::unique_ptr<TrainEngine> engine_;
  LrScheduleOptions schedule_;
  double gemm_rate_ = 0;
  double flops_per_token_ = 0;
};

}  // namespace

RunEnd RunLmTask(Job& job) { return LmTask(job).Run(); }

}  // namespace keel::trainer
