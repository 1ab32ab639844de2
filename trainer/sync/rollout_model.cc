#include "trainer/sync/rollout_model.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "trainer/engine/device_pages.h"
#include "trainer/engine/weights_digest.h"

namespace keel::trainer {

namespace {

void Resize(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* storage = StorageOf(tensor);
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

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
  group.device_index = context.options().device_index;
  group.local_address = context.options().local_address;
  group_ = parallel::MakeProcessGroup(context.store(), context.rank(), group);
  model::DecoderOptions decoder;
  decoder.forward_only = true;
  decoder.dtype = trainer.options().dtype;
  decoder.device = trainer.options().device;
  decoder_ = std::make_unique<model::Decoder>(config, parallel::TensorParallel{group_.get(), false},
                                              decoder);
  alone_ = parallel::MakeSingleGroup("rollout weights");
  parallel::GradBufferOptions storage;
  storage.dtype = decoder.dtype;
  storage.device = decoder.device;
  storage.inference = true;
  storage_ = std::make_unique<parallel::GradBuffer>(decoder_->parameters(), *alone_, *alone_,
                                                    nullptr, storage);

  // 2. How it gets its weights.
  sync_ = std::make_unique<WeightSync>(options.sync_group ? *options.sync_group : context.world(),
                                       trainer.DeviceTable().WithoutViews(),
                                       Table(storage_->flat_values()).WithoutViews(), replica_,
                                       replicas_, options.sync);
  aliased_ =
      sync_->coincides() && context.layout().pp() == 1 && context.layout().tp() == options.tp;
  if (aliased_) {
    const auto& mine = decoder_->parameters();
    const auto& theirs = trainer.decoder().parameters();
    TORCH_CHECK(mine.size() == theirs.size(), "RolloutModel: other parameters than the trainer's");
    for (size_t i = 0; i < mine.size(); ++i) {
      TORCH_CHECK(mine[i]->name == theirs[i]->name && mine[i]->shape == theirs[i]->shape,
                  "RolloutModel: ", mine[i]->name, " is not the trainer's ", theirs[i]->name);
      mine[i]->value = theirs[i]->value.detach();
    }
    storage_.reset();
  }
  engine_ = std::make_unique<rollout::Engine>(*decoder_, *group_, options.engine);
  engine_->Invalidate("it has no weights yet");
}

RolloutModel::~RolloutModel() = default;

ShardTable RolloutModel::Table(const at::Tensor& storage) const {
  return decoder_->Table(0, 1, true, [&](const at::Tensor& tensor) {
    return storage.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  });
}

ShardTable RolloutModel::Table() const {
  return decoder_->Table(0, 1, true, [](const at::Tensor& tensor) { return tensor; });
}

void RolloutModel::Allocate() {
  if (storage_ == nullptr) return;
  const at::Tensor& values = storage_->flat_values();
  Resize(values, static_cast<size_t>(values.numel()) * values.element_size());
}

WeightUpdate RolloutModel::Sync() {
  WeightUpdate update;
  const Stopwatch watch;
  Residency& residency = trainer_.residency();
  const Place before = residency.place(StateClass::kParams);
  if (aliased_) {  // the memory is the same: there is nothing to move, and nothing to prove
    update.seconds = watch.Elapsed();
    return update;
  }
  // 1. Weights to the device; they leave again before the KV cache comes back.
  update.param_load = residency.LoadToRead(StateClass::kParams);
  Result<WeightSyncReport> report = Status(StatusCode::kInternal, "not run");
  if (options_.staged) {
    // 2a. Beside the old version, which is replaced at once when all ranks have the proof.
    const at::Tensor& values = storage_->flat_values();
    at::Tensor fresh = at::zeros({values.numel()}, values.options());
    report = sync_->Run(trainer_.DeviceTable(), Table(fresh));
    if (report.ok()) {
      c10::StorageImpl* old = StorageOf(values);
      old->set_data_ptr(StorageOf(fresh)->set_data_ptr(at::DataPtr()));
      old->set_nbytes(StorageOf(fresh)->nbytes());
    }
  } else {
    // 2b. Over the old version, which is gone from here on.
    engine_->Invalidate("an update of its weights is under way or has failed");
    Allocate();
    report = sync_->Run(trainer_.DeviceTable(), Table(storage_->flat_values()));
  }
  update.param_offload = residency.Restore(StateClass::kParams, before);
  update.sync = ValueOrThrow(report);
  update.seconds = watch.Elapsed();
  return update;
}

WeightUpdate RolloutModel::Update() {
  ThrowIfError(FailPoint("sync.begin"));
  const WeightUpdate update = Sync();
  version_ = {version_.number + 1, update.sync.digest};
  engine_->SetWeightVersion(version_.number);
  return update;
}

WeightUpdate RolloutModel::Restore(const WeightVersion& expected) {
  const WeightUpdate update = Sync();
  const uint64_t found = aliased_ && expected.digest != 0
                             ? WeightsDigest(trainer_, context_.world())
                             : update.sync.digest;
  if (expected.digest != 0 && found != expected.digest) {
    throw Error(StatusCode::kDataLoss,
                fmt::format("weights of version {}: digest {:016x}, the checkpoint says {:016x}; "
                            "they are not those that were saved",
                            expected.number, found, expected.digest));
  }
  version_ = {expected.number, found};
  engine_->SetWeightVersion(version_.number);
  return update;
}

void RolloutModel::Corrupt() {
  if (aliased_) return;
  Allocate();
  storage_->flat_values().fill_(std::numeric_limits<float>::quiet_NaN());
}

void RolloutModel::ReleaseWeights() {
  if (!options_.releases || aliased_) return;
  engine_->Invalidate("its weights are released until the next update");
  Resize(storage_->flat_values(), 0);
}

double RolloutModel::Prepare() {
  double seconds = 0.0;
  params_before_ = trainer_.residency().place(StateClass::kParams);
  if (aliased_) seconds = trainer_.residency().LoadToRead(StateClass::kParams);
  if (options_.releases) engine_->RestoreCache();
  return seconds;
}

double RolloutModel::Leave() {
  if (options_.releases) engine_->ReleaseCache();
  if (!aliased_) return 0.0;
  return trainer_.residency().Restore(StateClass::kParams, params_before_);
}

}  // namespace keel::trainer
