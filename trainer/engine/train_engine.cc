#include "trainer/engine/train_engine.h"

#include <array>
#include <cmath>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "parallel/tensor/send.h"

namespace keel::trainer {

using model::ModelBatch;

namespace {

// What tables are of.
constexpr std::array kState = {StateClass::kParams, StateClass::kOptimizer};

parallel::TensorParallel TensorParallelOf(parallel::ParallelContext& context,
                                          const TrainEngineOptions& options) {
  return {&context.tp(), options.sequence_parallel && context.layout().tp() > 1,
          options.arithmetic};
}

model::DecoderOptions DecoderOptionsOf(parallel::ParallelContext& context,
                                       const TrainEngineOptions& options) {
  model::DecoderOptions decoder;
  decoder.stage = context.pp_rank();
  decoder.stages = context.layout().pp();
  decoder.recompute = options.recompute;
  decoder.dtype = options.dtype;
  decoder.device = options.device;
  decoder.value_head = options.value_head;
  return decoder;
}

parallel::WeightStore StoreOf(const model::Decoder& decoder, parallel::ParallelContext& context,
                              const TrainEngineOptions& options) {
  const parallel::WeightStoreOptions store{options.dtype, options.device};
  if (options.inference) return {decoder.parameters(), store};
  return parallel::GradBuffer::MakeStore(decoder.parameters(), context, store,
                                         options.bucket_bytes);
}

}  // namespace

TrainEngine::TrainEngine(parallel::ParallelContext& context, const model::HfConfig& config,
                         const TrainEngineOptions& options)
    : context_(context),
      options_(options),
      decoder_(config, TensorParallelOf(context, options), DecoderOptionsOf(context, options)),
      weights_(StoreOf(decoder_, context, options)),
      learning_(options.inference ? nullptr
                                  : std::make_unique<Learning>(weights_, context, options.adamw)),
      runner_(context.pp_forward(), context.pp_backward(),
              at::TensorOptions().dtype(options.dtype).device(options.device)),
      residency_(State(), options.offload, options.copies),
      update_times_(residency_.cuda()) {}

TrainEngine::Learning& TrainEngine::learning() {
  TORCH_CHECK(learning_, "TrainEngine: made with options.inference, so that it cannot learn");
  return *learning_;
}

Residency::Tensors TrainEngine::State() const {
  Residency::Tensors state = {{weights_.flat()}, {}, {}, weights_.base()};
  if (learning_) {
    state.grads = learning_->gradients.flat();
    state.optimizer = learning_->optimizer.flat_state();
  }
  return state;
}

void TrainEngine::Initialize(uint64_t seed) {
  decoder_.Initialize(seed);
  if (learning_) learning_->optimizer.ResetMasters();
}

void TrainEngine::InitializeAdapters(uint64_t seed) {
  decoder_.Initialize(seed, /*only_trained=*/true);
  if (learning_) learning_->optimizer.ResetMasters();
}

void TrainEngine::ResetMasters() {
  if (!learning_ || !learning_->optimizer.has_masters()) return;
  const Place params = residency_.place(StateClass::kParams);
  const Place optimizer = residency_.place(StateClass::kOptimizer);
  residency_.LoadToRead(StateClass::kParams);
  residency_.Load(StateClass::kOptimizer);
  learning_->optimizer.ResetMasters();
  residency_.Restore(StateClass::kOptimizer, optimizer);
  residency_.Restore(StateClass::kParams, params);
}

void TrainEngine::OffloadIdle() {
  if (options_.offload.params) residency_.Offload(StateClass::kParams);
  if (options_.offload.grads) residency_.Offload(StateClass::kGrads);
  if (options_.offload.optimizer) residency_.Offload(StateClass::kOptimizer);
}

void TrainEngine::set_before_write(const parallel::BeforeWrite& hook) {
  residency_.set_before_write(hook);
  const auto left = [this, hook](const void* begin, size_t bytes) {
    residency_.HoldUntilLeft(begin, bytes);
    hook(begin, bytes);
  };
  weights_.set_before_write(left);
  if (learning_) learning_->optimizer.set_before_write(left);
}

parallel::StageCallbacks TrainEngine::Callbacks(const std::vector<ModelBatch>& microbatches,
                                                const LossFunction& loss,
                                                const model::Decoder::ReadyCallback& on_ready,
                                                Balance* balance) {
  const int64_t split = options_.sequence_parallel ? context_.layout().tp() : 1;
  parallel::StageCallbacks callbacks;
  callbacks.spans = context_.spans();
  callbacks.activation_shape = [this, &microbatches, split](int m) -> std::vector<int64_t> {
    return {microbatches[static_cast<size_t>(m)].ids.size(0) / split + decoder_.carried_rows(),
            decoder_.config().hidden_size};
  };
  callbacks.forward = [this, &microbatches, loss, on_ready, balance](int m,
                                                                     const at::Tensor& input) {
    model::RouterLoad load;
    const at::Tensor hidden =
        decoder_.Forward(input, microbatches[static_cast<size_t>(m)], on_ready, &load);
    if (!decoder_.last_stage()) return hidden;
    const at::Tensor own = loss(m, hidden, on_ready);
    if (balance == nullptr) return own;
    const at::Tensor more = balance->Add(m, load);
    return more.defined() ? own + more : own;
  };
  return callbacks;
}

// Returns what the micro-batch adds to the step's loss; undefined: nothing.
at::Tensor TrainEngine::Balance::Add(int microbatch, const model::RouterLoad& load) {
  const at::Tensor weight = weights[microbatch];
  const at::Tensor one = load.BalanceLoss();
  const auto add = [&](at::Tensor& sum, const at::Tensor& value) {
    const at::Tensor part = value.detach() * weight.to(at::kFloat);
    sum = sum.defined() ? sum + part : part;
  };
  add(loss, one);
  add(busiest, load.BusiestShare());
  return coefficient == 0 ? at::Tensor() : one * (weight * coefficient).to(at::kFloat);
}

TrainEngine::LossFunction TrainEngine::TokenLoss(const std::vector<ModelBatch>& microbatches,
                                                 double scale) {
  return [this, &microbatches, scale](int m, const at::Tensor& hidden,
                                      const model::Decoder::ReadyCallback& on_ready) {
    return decoder_.Loss(hidden, microbatches[static_cast<size_t>(m)].targets, scale, on_ready);
  };
}

std::vector<double> TrainEngine::SumOverRanks(at::Tensor tensor) {
  context_.world().AllReduce(tensor);
  return ReadSums(tensor);
}

std::vector<double> TrainEngine::ReadSums(at::Tensor tensor) {
  tensor = tensor.cpu();
  // The host may have waited for an operation that was aborted: then these are no sums.
  if (residency_.cuda() != nullptr) ThrowIfError(residency_.cuda()->Lost());
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

StepResult TrainEngine::Step(const std::vector<ModelBatch>& microbatches, int64_t loss_tokens,
                             double lr, int64_t t) {
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, loss_tokens));
  at::Tensor shares;
  if (decoder_.config().moe.experts > 0) {
    std::vector<at::Tensor> learnt;
    for (const ModelBatch& batch : microbatches)
      learnt.push_back(batch.targets.ne(parallel::kIgnoreTarget).sum());
    shares = at::stack(learnt).to(at::kDouble) * scale;
  }
  return Step(microbatches, TokenLoss(microbatches, scale), shares, lr, t);
}

StepResult TrainEngine::Step(const std::vector<ModelBatch>& microbatches,
                             const LossFunction& loss_function, const at::Tensor& balance_shares,
                             double lr, int64_t t) {
  StepResult result;
  auto& [gradients, optimizer] = learning();
  const Place params_before = residency_.place(StateClass::kParams);
  const Place grads_before = residency_.place(StateClass::kGrads);
  const Place optimizer_before = residency_.place(StateClass::kOptimizer);

  // 1. Forward and backward of all micro-batches; gradients are summed in the flat buffer.
  SpanRecorder* const spans = context_.spans();
  const ScopedSpan whole(spans, "learn");
  ScopedSpan learning_span(spans, "forward, backward");
  result.moves.param_load = residency_.Load(StateClass::kParams);
  result.moves.grad_load = residency_.Load(StateClass::kGrads);
  PartTimes times(residency_.cuda());
  times.Begin();
  gradients.ZeroGradients();
  std::optional<Balance> balance;
  if (decoder_.config().moe.experts > 0) {
    balance.emplace();
    balance->weights = parallel::SentTo(options_.device, balance_shares);
    // A critic has no routers' loss in transformers either.
    balance->coefficient = options_.value_head ? 0 : decoder_.config().balance_coefficient();
  }
  parallel::StageCallbacks callbacks = Callbacks(
      microbatches, loss_function,
      [&all = gradients](const parallel::Parameter& parameter) { all.Ready(parameter); },
      balance ? &*balance : nullptr);
  callbacks.before_last_backward = [&all = gradients] { all.BeginLastMicrobatch(); };
  const at::Tensor loss = runner_.Train(static_cast<int>(microbatches.size()), callbacks);
  times.End(&result.forward_backward_s);
  learning_span.End();

  ThrowIfError(FailPoint("step.gradients"));
  // 2. Finalise gradients: what DP, TP and tied stages still have to sum.
  ScopedSpan reduce_span(spans, "reduce");
  gradients.FinishReduction();
  ScopedSpan sums_span(spans, "sum loss and norm");
  // Where they are computed, so that the host waits once, for their sums.
  const auto fp64 = at::TensorOptions(options_.device).dtype(at::kDouble);
  const auto owned = [&](const at::Tensor& value) {
    return owns_loss() ? value.detach().to(fp64).view({1}) : at::zeros({1}, fp64);
  };
  std::vector<at::Tensor> parts = {owned(loss), optimizer.LocalSquaredNorm(context_.seat())};
  if (options_.vote != nullptr) {
    const auto ballot = options_.vote->Ballot();
    parts.push_back(parallel::SentTo(
        options_.device, at::tensor(at::ArrayRef<double>(ballot.data(), ballot.size()))));
  }
  if (balance)
    for (const at::Tensor& one : {balance->loss, balance->busiest}) parts.push_back(owned(one));
  at::Tensor on_device = at::cat(parts);
  context_.world().AllReduce(on_device);
  times.End(&result.reduce_s);
  const std::vector<double> sums = ReadSums(on_device);
  sums_span.End();
  if (balance) result.routers = {sums[sums.size() - 2], sums[sums.size() - 1]};
  if (options_.vote != nullptr) options_.vote->Count(sums[2], sums[3]);
  result.loss = sums[0];
  result.grad_norm = std::sqrt(sums[1]);
  reduce_span.End();
  // The host has waited for all of these, and for the update before.
  ThrowIfError(times.Read().WithContext("times of the step"));
  ThrowIfError(update_times_.Read().WithContext("times of the step before"));
  if (residency_.cuda() != nullptr) result.optimizer_s = std::exchange(update_s_, 0.0);

  // 3. Guard, clip, update, publish over DP. Every rank has the same sums, so all skip or none.
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  if (!result.skipped) {
    const double limit = options_.clip_grad;
    // As torch.nn.utils.clip_grad_norm_.
    const double clip = limit > 0 ? std::min(1.0, limit / (result.grad_norm + 1e-6)) : 1.0;
    const ScopedSpan optimizer_span(spans, "optimizer");
    result.moves.optimizer_load = residency_.Load(StateClass::kOptimizer);
    ThrowIfError(FailPoint("step.update"));
    update_times_.Begin();
    optimizer.Step(lr, clip, t);
    update_times_.End(&update_s_);
    if (residency_.cuda() == nullptr) result.optimizer_s = std::exchange(update_s_, 0.0);
    ThrowIfError(FailPoint("step.updated"));
  }

  // 4. What was on the host goes back there; gradients first, which frees their memory.
  result.moves.grad_offload = residency_.Restore(StateClass::kGrads, grads_before);
  result.moves.optimizer_offload = residency_.Restore(StateClass::kOptimizer, optimizer_before);
  result.moves.param_offload = residency_.Restore(StateClass::kParams, params_before);
  return result;
}

void TrainEngine::Evaluate(const std::vector<ModelBatch>& microbatches, const LossFunction& take) {
  const ScopedSpan span(context_.spans(), "evaluate");
  const Place params_before = residency_.place(StateClass::kParams);
  residency_.LoadToRead(StateClass::kParams);
  runner_.Evaluate(static_cast<int>(microbatches.size()), Callbacks(microbatches, take, {}));
  residency_.Restore(StateClass::kParams, params_before);
}

double TrainEngine::SummedLoss(const std::vector<ModelBatch>& microbatches) {
  double sum = 0;
  const LossFunction loss = TokenLoss(microbatches, 1.0);
  Evaluate(microbatches,
           [&](int m, const at::Tensor& hidden, const model::Decoder::ReadyCallback& on_ready) {
             const at::Tensor one = loss(m, hidden, on_ready);
             sum += one.item<double>();
             return one;
           });
  return SumOverRanks(at::full({1}, owns_loss() ? sum : 0.0,
                               at::TensorOptions(options_.device).dtype(at::kDouble)))[0];
}

void TrainEngine::LoadInto(const std::function<Written(StateTables)>& write) {
  LoadInto({this}, [&](std::vector<StateTables> tables) {
    if (!has_adapters()) return write(std::move(tables[0]));
    // Where the arena has no room for the base, it goes through memory of its own.
    const bool through = residency_.apart() && !options_.offload.params;
    const at::Tensor passing = through ? weights_.base().cpu() : at::Tensor();
    tables[0].base = through ? BaseTableIn(passing) : BaseTable(true);
    const Written written = write(std::move(tables[0]));
    if (through && written.weights) {
      const at::NoGradGuard no_grad;
      weights_.base().copy_(passing);
    }
    return written;
  });
}

void TrainEngine::LoadInto(const std::vector<TrainEngine*>& engines,
                           const std::function<Written(std::vector<StateTables>)>& write) {
  // 1. Host memory with the state as it is, so that parts that are not written keep their values.
  std::vector<StateTables> tables;
  for (TrainEngine* engine : engines) {
    if (engine->residency_.apart()) {
      for (const StateClass c : kState) engine->residency_.CopyToHost(c);
    }
    tables.push_back(engine->Tables(true));
  }
  const Written written = write(std::move(tables));
  if (!written.weights && !written.optimizer) return;
  // 2. What is on both sides is copied to the device.
  for (TrainEngine* engine : engines) {
    for (const StateClass c : kState) engine->residency_.HostChanged(c);
    if (!written.weights || !written.optimizer) engine->ResetMasters();
    // Nothing else of an engine that does not learn goes through pinned memory.
    if (engine->options_.inference && !engine->options_.offload.params)
      engine->residency_.ForgetHost();
  }
}

void TrainEngine::MixIn(TrainEngine& from, double alpha) {
  const std::vector<parallel::Parameter*>& own = weights_.parameters();
  const std::vector<parallel::Parameter*>& other = from.weights_.parameters();
  TORCH_CHECK(options_.inference && own.size() == other.size(),
              "TrainEngine: mixes weights of an engine that learns, or of other parameters");
  const at::NoGradGuard no_grad;
  const Place own_before = residency_.place(StateClass::kParams);
  const Place other_before = from.residency_.place(StateClass::kParams);
  from.residency_.LoadToRead(StateClass::kParams);
  residency_.Load(StateClass::kParams);
  for (size_t i = 0; i < own.size(); ++i) {
    const at::Tensor value = own[i]->value.detach();
    weights_.WillWrite(value);
    const at::Tensor mixed = value.to(at::kFloat).mul(1 - alpha);
    value.copy_(mixed.add(other[i]->value.detach().to(at::kFloat), alpha));
  }
  residency_.Restore(StateClass::kParams, own_before);
  from.residency_.Restore(StateClass::kParams, other_before);
}

ShardTable TrainEngine::DeviceTable(Which which) {
  return weights_.Table(context_.seat(), false, {}, which);
}

ShardTable TrainEngine::BaseTable(bool with_tied_copies) {
  const auto host = [this](const at::Tensor& tensor) { return residency_.HostView(tensor); };
  return weights_.Table(context_.seat(), with_tied_copies, host, Which::kBase);
}

ShardTable TrainEngine::BaseTableIn(const at::Tensor& memory) {
  const auto there = [&memory](const at::Tensor& tensor) {
    return memory.view(tensor.scalar_type())
        .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  };
  return weights_.Table(context_.seat(), true, there, Which::kBase);
}

TrainEngine::StateTables TrainEngine::SaveTables() {
  if (residency_.apart()) residency_.StartCopyToHost(kState);
  return Tables(false);
}

TrainEngine::StateTables TrainEngine::Tables(bool with_tied_copies) {
  const auto host = [this](const at::Tensor& tensor) { return residency_.HostView(tensor); };
  StateTables tables;
  tables.model = weights_.Table(context_.seat(), with_tied_copies, host, Which::kOwn);
  if (learning_)
    tables.optimizer = learning_->optimizer.Table(context_.seat(), with_tied_copies, host);
  return tables;
}

}  // namespace keel::trainer
