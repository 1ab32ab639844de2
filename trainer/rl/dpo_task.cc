#include "trainer/rl/dpo_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/hash.h"
#include "trainer/algorithms/dpo_loss.h"
#include "trainer/algorithms/optimal_transport.h"
#include "trainer/data/preference_data.h"
#include "trainer/engine/device_batch.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/inputs/run_model.h"
#include "trainer/metrics/metrics_sink.h"
#include "trainer/rl/console_text.h"

namespace keel::trainer::rl {

namespace {

using model::ModelBatch;

TokenLayout LayoutOf(const ModelBatch& batch) {
  return {batch.targets.ne(parallel::kIgnoreTarget), batch.packing.boundaries};
}

// What fills up a micro-batch is one sequence behind its pairs.
int64_t PairsOf(const ModelBatch& batch) {
  return static_cast<int64_t>((batch.packing.boundaries.size() - 1) / 2);
}

// Each pair weighs as much as any other, in the balance loss of experts as in the preferences.
at::Tensor SharesOf(const std::vector<ModelBatch>& batches, int64_t pairs) {
  std::vector<double> shares;
  for (const ModelBatch& batch : batches)
    shares.push_back(static_cast<double>(PairsOf(batch)) / static_cast<double>(pairs));
  return at::tensor(shares, at::kDouble);
}

class DpoTask : public Task {
 public:
  DpoTask(Job& job, RunCourse& course, const Config& config)
      : job_(job), course_(course), c_(config) {}

 private:
  const ModelDescription& OpenModel() override { return source_ = ValueOrThrow(OpenRunModel(c_)); }
  TaskData LoadData() override;
  // The model that learns, and the reference: weights alone.
  void BuildModels() override;
  std::vector<Role> SavedRoles() override;
  const RefSection& ref() const { return c_.actor_rollout_ref.ref; }
  Reference reference() override { return {reference_.get(), reference_digest_}; }
  // The actor itself where it has adapters: see BaseOnly.
  TrainEngine& ReferenceEngine() { return reference_ ? *reference_ : *actor_; }

  // What a step's pairs are compared with, by micro-batch.
  struct Compared {
    std::vector<at::Tensor> reference;  // its log-probabilities, on ranks of the last stage
    std::vector<DpoPartners> partners;  // of losses that sort the batch
  };
  // Of the first `count` pairs at the cursor, which `batches` are this rank's share of.
  Compared Compare(const std::vector<ModelBatch>& batches, int64_t count);
  std::vector<DpoPartners> Partners(const std::vector<ModelBatch>& batches,
                                    const std::vector<at::Tensor>& reference, int64_t count);
  // A model's log-probabilities by micro-batch, on ranks of the last stage.
  std::vector<at::Tensor> LogProbsOf(TrainEngine& engine, const std::vector<ModelBatch>& batches);
  // The loss of a micro-batch; adds to `sums` on one rank of each TP group.
  TrainEngine::LossFunction LossOf(const std::vector<ModelBatch>& batches, const Compared& compared,
                                   const DpoDenominators& counts, DpoSums::Totals& totals);
  // Over all ranks.
  DpoSums Total(const DpoSums::Totals& mine);

  void BeforeSteps() override;
  std::optional<StepEnd> Step(int64_t step) override;
  void WriteStep(const StepResult& result, const DpoSums& sums, const PreferenceBatch& batch,
                 double lr, double reference_s, double step_s, int64_t count);
  std::optional<double> Validate() override;

  Job& job_;
  RunCourse& course_;
  const Config& c_;
  ModelSource source_;
  PreferenceSet train_, val_;
  DpoOptions loss_;
  BatchOptions batches_;
  std::unique_ptr<TrainEngine> actor_, reference_;
  uint64_t reference_digest_ = 0;
  LrScheduleOptions schedule_;
};

TaskData DpoTask::LoadData() {
  auto data = ValueOrThrow(LoadPreferenceData(c_, source_));
  train_ = std::move(data.train);
  val_ = std::move(data.val);
  loss_.beta = c_.dpo.beta;
  loss_.terms.clear();
  for (size_t i = 0; i < c_.dpo.loss_type.size(); ++i)
    loss_.terms.push_back(
        {c_.dpo.loss_type[i], c_.dpo.loss_weights.empty() ? 1 : c_.dpo.loss_weights[i]});
  loss_.label_smoothing = c_.dpo.label_smoothing;
  loss_.f_divergence = c_.dpo.f_divergence_type;
  loss_.f_alpha_divergence_coef = c_.dpo.f_alpha_divergence_coef;
  loss_.discopop_tau = c_.dpo.discopop_tau;
  loss_.ld_alpha = c_.dpo.ld_alpha;
  loss_.preference_loss_weight = c_.dpo.preference_loss_weight;
  loss_.sft_loss_weight = c_.dpo.sft_loss_weight;
  loss_.use_weighting = c_.dpo.use_weighting;
  TaskData given;
  given.train = TaskData::Set::Of(train_);
  given.val = TaskData::Set::Of(val_);
  given.samples = "pairs";
  return given;
}

void DpoTask::BuildModels() {
  const auto& actor = c_.actor_rollout_ref.actor;
  TrainEngineOptions options = job_.EngineOptions(actor.megatron, actor.optim);
  batches_ = job_.BatchesFor(options);
  actor_ = std::make_unique<TrainEngine>(job_.context(), source_.config, options);
  job_.FillWeights(source_, *actor_);
  if (!actor_->has_adapters()) {
    options.inference = true;
    options.offload = {c_.actor_rollout_ref.ref.megatron.param_offload, false, false};
    reference_ = std::make_unique<TrainEngine>(job_.context(), source_.config, options);
    job_.FillWeights(source_, *reference_);
    reference_digest_ =
        WeightsDigest(*reference_, TrainEngine::Which::kAll, job_.context().world());
  }
  actor_->OffloadIdle();
  if (reference_) reference_->OffloadIdle();
  job_.log().Info("memory: {}", actor_->residency().Report());
}

// A reference that stays as it was is not saved: only its digest is.
std::vector<DpoTask::Role> DpoTask::SavedRoles() {
  std::vector<Role> saved = {{"actor", actor_.get()}};
  if (ref().sync_ref_model) saved.push_back({"ref", reference_.get()});
  return saved;
}

std::vector<at::Tensor> DpoTask::LogProbsOf(TrainEngine& engine,
                                            const std::vector<ModelBatch>& batches) {
  std::vector<at::Tensor> found(batches.size());
  engine.Evaluate(batches, [&](int m, const at::Tensor& hidden, const auto&) {
    const auto i = static_cast<size_t>(m);
    found[i] = engine.decoder().LogProbs(hidden, batches[i].targets);
    return found[i].sum();
  });
  return found;
}

std::vector<DpoPartners> DpoTask::Partners(const std::vector<ModelBatch>& batches,
                                           const std::vector<at::Tensor>& reference,
                                           int64_t count) {
  // 1. [count, 4]: log-probabilities of the preferred and the rejected answers, the policy's and
  // the reference's. Each pair is added by one rank, so that the sum over ranks is exact.
  const std::vector<at::Tensor> policy = LogProbsOf(*actor_, batches);
  const auto& context = job_.context();
  int64_t first = context.dp_rank() * (c_.data.train_batch_size / context.layout().dp());
  at::Tensor all = at::zeros({count, 4}, at::TensorOptions(job_.device()).dtype(at::kDouble));
  std::vector<std::pair<int64_t, int64_t>> places;  // of each micro-batch: its first pair, pairs
  for (size_t m = 0; m < batches.size(); ++m) {
    const TokenLayout layout = LayoutOf(batches[m]);
    const int64_t pairs = PairsOf(batches[m]);
    places.emplace_back(first, pairs);
    if (pairs > 0 && actor_->decoder().last_stage() && context.tp_rank() == 0) {
      all.narrow(0, first, pairs)
          .copy_(at::cat({AnswerLogProbs(layout, policy[m], loss_),
                          AnswerLogProbs(layout, reference[m], loss_)},
                         1));
    }
    first += pairs;
  }
  job_.context().world().AllReduce(all);

  // 2. By rank among all pairs.
  const at::Tensor chosen = all.select(1, 0), rejected = all.select(1, 1);
  const at::Tensor ref_chosen = all.select(1, 2), ref_rejected = all.select(1, 3);
  const auto by_rank = [&](const at::Tensor& values, const at::Tensor& others) {
    const auto host = [](const at::Tensor& tensor) {
      const at::Tensor copy = tensor.cpu().contiguous();
      const double* data = copy.const_data_ptr<double>();
      return std::vector<double>(data, data + copy.numel());
    };
    return at::tensor(PartnersByRank(host(values), host(others)), at::kDouble).to(job_.device());
  };
  const at::Tensor of_margin = by_rank(chosen - rejected, ref_chosen - ref_rejected);
  const at::Tensor of_chosen = by_rank(chosen - ref_chosen, rejected - ref_rejected);
  const at::Tensor of_rejected = by_rank(rejected - ref_rejected, chosen - ref_chosen);
  std::vector<DpoPartners> partners;
  for (const auto& [begin, pairs] : places) {
    if (pairs == 0) {
      partners.emplace_back();
      continue;
    }
    partners.push_back({of_margin.narrow(0, begin, pairs), of_chosen.narrow(0, begin, pairs),
                        of_rejected.narrow(0, begin, pairs)});
  }
  return partners;
}

DpoTask::Compared DpoTask::Compare(const std::vector<ModelBatch>& batches, int64_t count) {
  Compared compared;
  {
    const BaseOnly base(reference_ ? nullptr : actor_.get());
    compared.reference = LogProbsOf(ReferenceEngine(), batches);
  }
  compared.partners = loss_.sorted() ? Partners(batches, compared.reference, count)
                                     : std::vector<DpoPartners>(batches.size());
  return compared;
}

TrainEngine::LossFunction DpoTask::LossOf(const std::vector<ModelBatch>& batches,
                                          const Compared& compared, const DpoDenominators& counts,
                                          DpoSums::Totals& totals) {
  return [this, &batches, &compared, counts, &totals](
             int m, const at::Tensor& hidden, const model::Decoder::ReadyCallback& on_ready) {
    const ModelBatch& batch = batches[static_cast<size_t>(m)];
    DpoInputs in;
    in.layout = LayoutOf(batch);
    in.log_probs =
        actor_->decoder()
            .LogProbsWithGradient(hidden, batch.targets, 1.0, /*with_entropy=*/false, on_ready)
            .log_probs;
    in.ref_log_probs = compared.reference[static_cast<size_t>(m)];
    if (loss_.use_weighting) {
      const at::NoGradGuard no_grad;
      in.log_sum_squares =
          actor_->decoder().LogSumSquares(hidden.detach(), batch.targets, /*temperature=*/1.0);
    }
    in.partners = compared.partners[static_cast<size_t>(m)];
    const DpoResult result = DpoLoss(in, loss_, counts);
    if (job_.context().tp_rank() == 0) totals += result.totals;
    return result.loss;
  };
}

DpoSums DpoTask::Total(const DpoSums::Totals& mine) {
  at::Tensor sums = mine.On(job_.device());
  job_.context().world().AllReduce(sums);
  const DpoSums read = DpoSums::Of(DpoSums::Totals(sums).Read());
  job_.context().world().CheckAlive();  // else these are no sums
  return read;
}

void DpoTask::BeforeSteps() {
  schedule_ = job_.Schedule(c_.actor_rollout_ref.actor.optim, "actor_rollout_ref.actor.optim",
                            course_.schedule_steps());
}

std::optional<DpoTask::StepEnd> DpoTask::Step(int64_t step) {
  // 1. Pairs at the global cursor, and what the reference makes of them.
  const Stopwatch watch;
  const int64_t count = course_.BatchCount();
  const PreferenceBatch batch = MakePreferenceBatch(
      train_, [this](int64_t k) { return course_.order().At(k); }, course_.state().samples_consumed,
      count, batches_);
  const std::vector<ModelBatch> microbatches = ToDevice(batch.microbatches, job_.device());
  const Compared compared = Compare(microbatches, count);
  const double reference_s = watch.Elapsed();

  // 2. Forward, backward, update.
  const double lr = LearningRate(schedule_, step);
  DpoSums::Totals totals;
  const StepResult result = actor_->Step(
      microbatches, LossOf(microbatches, compared, {batch.pairs, batch.chosen_tokens}, totals),
      SharesOf(microbatches, batch.pairs), lr, course_.state().optimizer_steps + 1);
  if (ref().SyncsAfter(step)) reference_->MixIn(*actor_, ref().ref_model_mixup_alpha);
  ThrowIfError(FailPoint("step.end"));
  course_.Advance(step, count, batch.tokens);
  course_.CountUpdates({result.skipped ? 0 : 1, result.skipped ? 1 : 0}, {});

  // 3. Metrics.
  const DpoSums total = Total(totals);
  WriteStep(result, total, batch, lr, reference_s, course_.EndTiming(), count);
  return StepEnd{result.loss, result.grad_norm};
}

void DpoTask::WriteStep(const StepResult& result, const DpoSums& sums, const PreferenceBatch& batch,
                        double lr, double reference_s, double step_s, int64_t count) {
  MetricsSink* writer = course_.metrics();
  if (writer == nullptr) return;
  StepLine line;
  line.Set("train/loss", result.loss);
  line.Set("train/grad_norm", result.grad_norm);
  if (result.routers) line.Set(result.routers->Metrics());
  line.Set("train/lr", lr);
  line.Set(sums.Metrics());
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(train_.Get(course_.order().At(course_.state().samples_consumed - count + i)).id);
  line.Set("data/samples_consumed", course_.state().samples_consumed);
  line.Set("data/sample_digest", Hash128(std::as_bytes(std::span(ids))).ToHex());
  line.Set("n_tokens_seen", course_.state().tokens_consumed);
  line.Set("skipped_steps", course_.state().skipped_steps);
  line.Set("throughput(tps)", static_cast<double>(batch.tokens) / step_s);
  line.Set("timing_s/ref", reference_s);
  line.Set("time_metrics/forward_backward(s)", result.forward_backward_s);
  line.Set("time_metrics/reduce(s)", result.reduce_s);
  line.Set("time_metrics/optimizer(s)", result.optimizer_s);
  line.Set("timing_s/step", step_s);
  line.Set(job_.DeviceMemory());
  line.Set("timing_s/param_load", result.moves.param_load);
  line.Set("timing_s/param_offload", result.moves.param_offload);
  line.Set("timing_s/optimizer_load", result.moves.optimizer_load);
  line.Set("timing_s/optimizer_offload", result.moves.optimizer_offload);
  if (const double saved = course_.TakeBlockedSeconds(); saved > 0)
    line.Set("timing_s/save_checkpoint", saved);
  writer->Step(line, course_.Progress(result.skipped), DpoText);
}

std::optional<double> DpoTask::Validate() {
  if (val_.size() == 0) return std::nullopt;
  const Stopwatch watch;
  DpoDenominators counts;
  for (int64_t i = 0; i < val_.size(); ++i) {
    const auto& learn = val_.Get(i).chosen.learn;
    counts.chosen_tokens += std::count(learn.begin() + 1, learn.end(), 1);
  }
  counts.pairs = val_.size();
  DpoSums::Totals totals;
  for (int64_t begin = 0; begin < val_.size(); begin += c_.data.train_batch_size) {
    if (job_.StopWanted()) return std::nullopt;
    const int64_t count = std::min(c_.data.train_batch_size, val_.size() - begin);
    const PreferenceBatch batch = MakePreferenceBatch(
        val_, [](int64_t k) { return k; }, begin, count, batches_);
    const auto microbatches = ToDevice(batch.microbatches, job_.device());
    const Compared compared = Compare(microbatches, count);
    actor_->Evaluate(microbatches, LossOf(microbatches, compared, counts, totals));
  }
  const DpoSums total = Total(totals);
  const double loss =
      loss_.preference_loss_weight * total.preference_loss + loss_.sft_weight() * total.sft_loss;
  MetricsSink* writer = course_.metrics();
  if (writer == nullptr) return loss;
  StepLine line;
  line.Set("val/loss", loss);
  line.Set("timing_s/testing", watch.Elapsed());
  for (const auto& [name, value] : total.Metrics())
    if (name.rfind("rewards/", 0) == 0) line.Set("val/" + name, value);
  writer->Validation(course_.state().step, line,
                     fmt::format("validation  loss {:.4f}  accuracy {:.3f}  ({} pairs)", loss,
                                 line.Number("val/rewards/accuracies"), val_.size()));
  return loss;
}

}  // namespace

std::unique_ptr<Task> MakeDpoTask(Job& job, RunCourse& course, const Config& config) {
  return std::make_unique<DpoTask>(job, course, config);
}

}  // namespace keel::trainer::rl
