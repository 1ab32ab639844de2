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
#include "parallel/groups/cuda_module.h"
#include "trainer/data/batch.h"
#include "trainer/engine/device_batch.h"
#include "trainer/engine/device_peak.h"
#include "trainer/engine/flops.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/memory.h"
#include "trainer/engine/train_engine.h"
#include "trainer/metrics/metrics_sink.h"

namespace keel::trainer {

namespace {

using model::ModelBatch;

class LmTask : public Task {
 public:
  LmTask(Job& job, RunCourse& course, LmInputs& inputs)
      : job_(job), c_(job.config()), course_(course), inputs_(inputs) {}

 private:
  const ModelDescription& OpenModel() override { return *(model_ = &inputs_.OpenModel()); }
  TaskData LoadData() override;
  void BuildModels() override;
  std::vector<Role> SavedRoles() override { return {{"actor", engine_.get()}}; }

  void BeforeSteps() override;
  std::optional<StepEnd> Step(int64_t step) override;

  struct StepFacts {
    double lr = 0;
    double data_s = 0;
    double step_s = 0;
    int64_t tokens = 0;        // over all ranks
    std::vector<int64_t> ids;  // of the samples, in their order
  };

  std::optional<double> DevicePeak() const;  // of this rank's
  void NothingLearnt(int64_t step, int64_t tokens);
  // Under torchtitan's names.
  void WriteStep(const StepResult& result, const StepFacts& facts);
  std::optional<double> Validate() override;

  Job& job_;
  const CommonSections& c_;
  RunCourse& course_;
  LmInputs& inputs_;
  const ModelDescription* model_ = nullptr;  // of inputs_
  const SampleSet* train_ = nullptr;         // of inputs_
  const SampleSet* val_ = nullptr;
  BatchOptions batches_;
  std::unique_ptr<TrainEngine> engine_;
  LrScheduleOptions schedule_;
  double gemm_rate_ = 0;  // operations per second, over all ranks
  double peak_rate_ = 0;  // likewise; 0: not known
  double flops_per_token_ = 0;
  int64_t steps_without_targets_ = 0;  // since this process began
};

TaskData LmTask::LoadData() {
  const LmInputs::Samples samples = inputs_.LoadSamples();
  train_ = &samples.train;
  val_ = &samples.val;
  TaskData data;
  data.train = TaskData::Set::Of(*train_);
  data.val = TaskData::Set::Of(*val_);
  return data;
}

void LmTask::BuildModels() {
  const TrainEngineOptions options = job_.EngineOptions(c_.megatron, c_.optim);
  batches_ = job_.BatchesFor(options);
  engine_ = std::make_unique<TrainEngine>(job_.context(), model_->config, options);
  job_.FillWeights(*model_, *engine_);
  job_.log().Info("model: {} parameters, {} layers", model_->config.NumParameters(),
                  model_->config.num_hidden_layers);
  engine_->OffloadIdle();
  job_.log().Info("memory: {}", engine_->residency().Report());
}

void LmTask::BeforeSteps() {
  // Of this rank: measured, as its data sheet says, and whether that is known.
  const std::optional<double> peak = DevicePeak();
  at::Tensor rates =
      at::tensor({MeasureGemmRate(job_.dtype(), job_.device()), peak.value_or(0), peak ? 1.0 : 0.0},
                 at::TensorOptions().dtype(at::kDouble))
          .to(job_.device());
  job_.context().world().AllReduce(rates);
  gemm_rate_ = rates[0].item<double>();
  if (rates[2].item<double>() == job_.context().layout().world())
    peak_rate_ = rates[1].item<double>();
  job_.log().Info(
      "matrix products: {:.1f} GFLOP/s over all ranks, the rate that gemm_share is a share of{}",
      gemm_rate_ / 1e9,
      peak_rate_ > 0
          ? fmt::format("; mfu is one of the devices' peak, {:.1f} TFLOP/s", peak_rate_ / 1e12)
          : "; the devices' peak is not known, so there is no mfu");
  flops_per_token_ = TrainFlopsPerToken(model_->config, static_cast<double>(c_.data.max_length));
  schedule_ = job_.Schedule(c_.optim, "actor_rollout_ref.actor.optim", course_.schedule_steps());
}

std::optional<double> LmTask::DevicePeak() const {
  if (job_.device().is_cpu() || job_.dtype() != at::kBFloat16) return std::nullopt;
  const auto gpu = ValueOrThrow(parallel::LoadCudaModule())->Describe(job_.device().index());
  return gpu.ok() ? PeakBf16Flops(gpu->name) : std::nullopt;
}

std::optional<LmTask::StepEnd> LmTask::Step(int64_t step) {
  // 1. Batch at the global cursor.
  const Stopwatch watch;
  ScopedSpan data_span(job_.context().spans(), "data");
  const int64_t count = course_.BatchCount();
  const StepBatch batch = MakeStepBatch(
      *train_, [this](int64_t k) { return course_.order().At(k); },
      course_.state().samples_consumed, count, batches_);
  const std::vector<ModelBatch> microbatches = ToDevice(batch.microbatches, job_.device());
  const double data_s = watch.Elapsed();
  data_span.End();

  // 2. Forward, backward, update.
  const double lr = LearningRate(schedule_, step);
  const StepResult result =
      engine_->Step(microbatches, batch.loss_tokens, lr, course_.state().optimizer_steps + 1);
  ThrowIfError(FailPoint("step.end"));
  course_.Advance(step, count, batch.tokens);
  course_.CountUpdates({result.skipped ? 0 : 1, result.skipped ? 1 : 0}, {});

  if (batch.loss_tokens == 0) NothingLearnt(step, batch.tokens);

  // 3. Metrics.
  std::vector<int64_t> ids;
  for (const int64_t sample : batch.samples) ids.push_back(train_->id(sample));
  WriteStep(result, {lr, data_s, course_.EndTiming(), batch.tokens, std::move(ids)});
  return StepEnd{result.loss, result.grad_norm};
}

void LmTask::NothingLearnt(int64_t step, int64_t tokens) {
  if (++steps_without_targets_ > 1 || course_.metrics() == nullptr) return;
  job_.log().Warning(
      "step {}: none of its {} tokens is learnt, as where data.packing cuts long prompts: its loss "
      "of 0 tells nothing, and weights move by momentum and weight decay alone; raise "
      "data.train_batch_size, or take data.packing: best_fit. data/steps_without_targets counts "
      "further ones",
      step, tokens);
}

void LmTask::WriteStep(const StepResult& result, const StepFacts& facts) {
  const double save_s = course_.TakeBlockedSeconds();
  MetricsSink* const writer = course_.metrics();
  if (writer == nullptr) return;
  const auto tokens = static_cast<double>(facts.tokens);
  const double flops = flops_per_token_ * tokens / facts.step_s;
  StepLine line;
  line.Set("loss_metrics/global_avg_loss", result.loss);
  line.Set("grad_norm", result.grad_norm);
  if (result.routers) line.Set(result.routers->Metrics());
  line.Set("lr", facts.lr);
  line.Set("throughput(tps)", facts.step_s > 0 ? tokens / facts.step_s : 0.0);
  line.Set("tflops", flops / 1e12);  // over all ranks
  if (peak_rate_ > 0) line.Set("mfu(%)", 100 * (flops / peak_rate_));
  line.Set("gemm_share(%)", 100 * (flops / gemm_rate_));
  line.Set("time_metrics/end_to_end(s)", facts.step_s);
  line.Set("time_metrics/data_loading(s)", facts.data_s);
  line.Set("time_metrics/forward_backward(s)", result.forward_backward_s);
  line.Set("time_metrics/reduce(s)", result.reduce_s);
  line.Set("time_metrics/optimizer(s)", result.optimizer_s);
  line.Set("timing_s/param_load", result.moves.param_load);
  line.Set("timing_s/param_offload", result.moves.param_offload);
  line.Set("timing_s/grad_load", result.moves.grad_load);
  line.Set("timing_s/grad_offload", result.moves.grad_offload);
  line.Set("timing_s/optimizer_load", result.moves.optimizer_load);
  line.Set("timing_s/optimizer_offload", result.moves.optimizer_offload);
  line.Set("memory/max_rss(GiB)", PeakRssGib());
  line.Set(job_.DeviceMemory());
  line.Set("n_tokens_seen", course_.state().tokens_consumed);
  line.Set("data/samples_consumed", course_.state().samples_consumed);
  line.Set("data/sample_digest", Hash128(std::as_bytes(std::span(facts.ids))).ToHex());
  line.Set("skipped_steps", course_.state().skipped_steps);
  if (steps_without_targets_ > 0) line.Set("data/steps_without_targets", steps_without_targets_);
  if (save_s > 0) line.Set("time_metrics/save_checkpoint(s)", save_s);
  writer->Step(line, course_.Progress(result.skipped), LmText);
}

std::optional<double> LmTask::Validate() {
  if (val_->size() == 0) return std::nullopt;
  const Stopwatch watch;
  double loss = 0;
  int64_t targets = 0;
  Residency& residency = engine_->residency();
  const Place params_before = residency.place(StateClass::kParams);
  MoveSeconds moves;
  moves.param_load = residency.LoadToRead(StateClass::kParams);
  bool left = false;
  for (int64_t begin = 0; begin < val_->size(); begin += c_.data.train_batch_size) {
    left = job_.StopWanted();
    if (left) break;
    const int64_t count = std::min(c_.data.train_batch_size, val_->size() - begin);
    const StepBatch batch = MakeStepBatch(
        *val_, [](int64_t k) { return k; }, begin, count, batches_);
    loss += engine_->SummedLoss(ToDevice(batch.microbatches, job_.device()));
    targets += batch.loss_tokens;
  }
  moves.param_offload = residency.Restore(StateClass::kParams, params_before);
  if (left) return std::nullopt;
  const double mean = loss / static_cast<double>(targets);
  if (MetricsSink* writer = course_.metrics()) {
    const double seconds = watch.Elapsed();
    StepLine line;
    line.Set("validation_metrics/global_avg_loss", mean);
    line.Set("validation_metrics/perplexity", std::exp(mean));
    line.Set("time_metrics/validation(s)", seconds);
    // Names of their own: the step that it follows has its moves.
    line.Set("timing_s/validation_param_load", moves.param_load);
    line.Set("timing_s/validation_param_offload", moves.param_offload);
    writer->Validation(
        course_.state().step, line,
        fmt::format("validation  loss {:.4f}  perplexity {:.3f}  ({} learnt tokens, {:.1f} s)",
                    mean, std::exp(mean), targets, seconds));
  }
  return c_.trainer.keep_best_metric == BestMetric::kPerplexity ? std::exp(mean) : mean;
}

}  // namespace

std::unique_ptr<Task> MakeLmTask(Job& job, RunCourse& course, LmInputs& inputs) {
  return std::make_unique<LmTask>(job, course, inputs);
}

}  // namespace keel::trainer
