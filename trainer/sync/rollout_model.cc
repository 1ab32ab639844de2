#include "trainer/sync/rollout_model.h"

#include <fmt/format.h>

#include <exception>
#include <limits>
#include <utility>

#include "common/clock.h"
#include "trainer/engine/weights_digest.h"

namespace keel::trainer {

using Which = TrainEngine::Which;

RolloutModel::RolloutModel(parallel::ParallelContext& context, const model::HfConfig& config,
                           TrainEngine& trainer, const RolloutModelOptions& options)
    : context_(context), trainer_(trainer), options_(options) {
  const int world = context.layout().world();
  if (options.tp < 1 || world % options.tp != 0) {
    throw Error(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout.tensor_model_parallel_size: {} ranks do not "
                            "divide into replicas of {}",
                            world, options.tp));
  }
  replica_ = context.rank() / options.tp;
  replicas_ = world / options.tp;

  // 1. The replica's group and its model, a whole one over its ranks.
  parallel::GroupOptions group;
  group.name = "rollout";
  for (int r = 0; r < options.tp; ++r) group.ranks.push_back(replica_ * options.tp + r);
  group.deadline = context.options().deadline;
  group.cuda = context.options().cuda;
  group.by_host = context.options().by_host;
  group.device_index = context.options().device_index;
  group.local_address = context.options().local_address;
  model::DecoderOptions decoder;
  decoder.dtype = trainer.options().dtype;
  decoder.device = trainer.options().device;
  model_ = std::make_unique<ReplicaModel>(
      parallel::MakeProcessGroup(context.store(), context.rank(), group), config, decoder);

  // 2. How it gets its weights.
  const auto make = [&](const ShardTable& from, const ShardTable& to) {
    return std::make_unique<WeightSync>(options.sync_group ? *options.sync_group : context.world(),
                                        from.WithoutViews(), to.WithoutViews(), replica_, replicas_,
                                        options.sync);
  };
  sync_ = make(trainer.DeviceTable(Which::kOwn), Table());
  if (trainer.has_adapters())
    base_sync_ = make(trainer.DeviceTable(Which::kBase), model_->BaseTable());
  aliased_ = sync_->coincides() && (base_sync_ == nullptr || base_sync_->coincides()) &&
             context.layout().pp() == 1 && context.layout().tp() == options.tp;
  if (aliased_) model_->Alias(trainer.weights());
  model_->MakeEngine(options.engine);
}

// The end of the group is not a collective; without it, it would be torn down with work in flight.
// Where an error ends the run, that work may never end.
RolloutModel::~RolloutModel() {
  try {
    if (model_ != nullptr && std::uncaught_exceptions() == 0) model_->group().Shutdown();
  } catch (const std::exception&) {
    // A lost peer was said by whoever waited for it.
  }
}

void RolloutModel::SendBase() {
  if (base_sync_ == nullptr || base_there_) return;
  model_->weights().Allocate();
  ThrowIfError(base_sync_->Run(trainer_.DeviceTable(Which::kBase), model_->BaseTable()).status());
  base_there_ = true;
}

WeightUpdate RolloutModel::Sync() {
  WeightUpdate update;
  const Stopwatch watch;
  Residency& residency = trainer_.residency();
  const Place before = residency.place(StateClass::kParams);
  if (aliased_) {  // the memory is the same: there is nothing to move, and nothing to prove
    update.seconds = update.blocked = watch.Elapsed();
    return update;
  }
  // 1. Weights to the device; they leave again before the KV cache comes back.
  update.param_load = residency.LoadToRead(StateClass::kParams);
  SendBase();
  Result<WeightSyncReport> report = Status(StatusCode::kInternal, "not run");
  if (options_.staged) {
    // 2a. Beside the old version, which is replaced at once when all ranks have the proof.
    const at::Tensor stage = model_->MakeStage();
    report = sync_->Run(trainer_.DeviceTable(Which::kOwn), model_->Table(stage));
    if (report.ok()) model_->TakeStage(stage);
  } else {
    // 2b. Over the old version, which is gone from here on.
    engine().Invalidate("an update of its weights is under way or has failed");
    model_->weights().Allocate();
    report = sync_->Run(trainer_.DeviceTable(Which::kOwn), Table());
  }
  update.param_offload = residency.Restore(StateClass::kParams, before);
  update.sync = ValueOrThrow(report);
  update.seconds = update.blocked = watch.Elapsed();
  return update;
}

WeightUpdate RolloutModel::Update() {
  const WeightUpdate update = Sync();
  version_ = {version_.number + 1, update.sync.digest};
  engine().SetWeightVersion(version_.number);
  return update;
}

WeightUpdate RolloutModel::Restore(const WeightVersion& expected) {
  const WeightUpdate update = Sync();
  const uint64_t found = aliased_ && expected.digest != 0
                             ? WeightsDigest(trainer_, Which::kOwn, context_.world())
                             : update.sync.digest;
  if (expected.digest != 0 && found != expected.digest) {
    throw Error(StatusCode::kDataLoss,
                fmt::format("weights of version {}: digest {:016x}, the checkpoint says {:016x}; "
                            "they are not those that were saved",
                            expected.number, found, expected.digest));
  }
  version_ = {expected.number, found};
  engine().SetWeightVersion(version_.number);
  return update;
}

void RolloutModel::Corrupt() {
  if (aliased_) return;
  base_there_ = false;
  model_->weights().Allocate();
  for (const at::Tensor& memory : {model_->weights().flat(), model_->weights().base()})
    if (memory.defined()) memory.fill_(std::numeric_limits<float>::quiet_NaN());
}

void RolloutModel::ReleaseWeights() {
  if (!options_.releases || aliased_) return;
  engine().Invalidate("its weights are released until the next update");
  base_there_ = false;
  model_->weights().Release();
}

double RolloutModel::Prepare() {
  double seconds = 0.0;
  params_before_ = trainer_.residency().place(StateClass::kParams);
  if (aliased_) seconds = trainer_.residency().LoadToRead(StateClass::kParams);
  if (options_.releases) engine().RestoreCache();
  return seconds;
}

double RolloutModel::Leave() {
  if (options_.releases) engine().ReleaseCache();
  if (!aliased_) return 0.0;
  return trainer_.residency().Restore(StateClass::kParams, params_before_);
}

}  // namespace keel::trainer
