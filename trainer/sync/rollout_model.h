// RolloutModel: the model that generates, in the ranks that train (colocated), and how it gets the
// trainer's weights.
//
// Where the rollout's layout is the trainer's, its parameters are the trainer's own memory and a
// sync moves nothing. What adapters stand beside is sent once, and again where it was given back.
// Else it has storage of its own, filled by WeightSync; a version counts only once all ranks have
// seen that what arrived is what was sent. Owned by the RL task; used from the training thread.
// Methods are collective over all ranks unless they say otherwise.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/groups/context.h"
#include "rollout/engine.h"
#include "trainer/engine/train_engine.h"
#include "trainer/sync/replica_model.h"
#include "trainer/sync/weight_sync.h"

namespace keel::trainer {

struct RolloutModelOptions {
  int tp = 1;  // ranks that share each layer; the world divides into replicas of so many neighbours
  rollout::EngineOptions engine;
  WeightSyncOptions sync;
  parallel::ProcessGroup* sync_group = nullptr;  // of all ranks; null: the context's world
  // The old version serves until all of the new one has arrived and is proved; costs a second copy
  // of this rank's shard meanwhile. Otherwise weights are overwritten in place, and a sync that
  // fails leaves an engine that refuses to generate.
  bool staged = false;
  // free_cache_engine: Release() gives the rollout's memory back.
  bool releases = true;
};

struct WeightVersion {
  int64_t number = 0;  // +1 with every update that all ranks have proved; none before the first
  // Of all weights, or of the adapters (WeightsDigest); 0 where nothing was moved, nor computed.
  uint64_t digest = 0;
};

// What an update cost this rank, in seconds; exactly 0.0 where nothing moved.
struct WeightUpdate {
  double param_load = 0;
  double param_offload = 0;
  double seconds = 0;  // in all, the moves included
  double blocked = 0;  // of it, for which the training stood still
  WeightSyncReport sync;
};

class RolloutModel {
 public:
  // `trainer` must outlive this. Throws Error(kConfig) when the model does not fit the layout.
  RolloutModel(parallel::ParallelContext& context, const model::HfConfig& config,
               TrainEngine& trainer, const RolloutModelOptions& options);
  ~RolloutModel();

  rollout::Engine& engine() { return model_->engine(); }
  parallel::ProcessGroup& group() { return model_->group(); }
  // This rank's replica. Not collective.
  int replica() const { return replica_; }
  int replicas() const { return replicas_; }
  bool leads() const { return model_->group().rank() == 0; }
  bool aliased() const { return aliased_; }

  // Gives the rollout the weights that the trainer has now: loads them if they are offloaded,
  // syncs, and leaves them where they were. Throws keel::Error; the version is then the old one,
  // and the engine has the old weights (staged) or refuses to generate until an update succeeds.
  WeightUpdate Update();
  // The same weights again, after a resume or a failure: the version does not change. Throws
  // Error(kDataLoss) unless their digest is `expected.digest`, if that is not 0.
  WeightUpdate Restore(const WeightVersion& expected);
  const WeightVersion& version() const { return version_; }
  // The rollout's weights on this rank, where the engine reads them. Not collective.
  ShardTable Table() const { return model_->Table(); }
  // Overwrites the rollout's weights with NaN, to prove that an update replaces all of them.
  // Nothing when aliased. Not collective.
  void Corrupt();

  // While the model is trained: gives back the rollout's weights where they are its own. They come
  // with the next update. Not collective.
  void ReleaseWeights();
  // Before generating: the KV cache, and the trainer's weights where they are used in place.
  // Returns the seconds of loading these. Not collective.
  double Prepare();
  // After generating: gives back what Prepare took. Returns the seconds of offloading.
  double Leave();

 private:
  WeightUpdate Sync();
  void SendBase();

  parallel::ParallelContext& context_;
  TrainEngine& trainer_;
  const RolloutModelOptions options_;
  int replica_ = 0;
  int replicas_ = 1;
  std::unique_ptr<ReplicaModel> model_;  // whose weights are the trainer's memory where aliased_
  std::unique_ptr<WeightSync> sync_;
  std::unique_ptr<WeightSync> base_sync_;  // null without adapters
  bool base_there_ = false;
  bool aliased_ = false;
  WeightVersion version_;
  Place params_before_ = Place::kDevice;  // of the trainer, before Prepare
};

}  // namespace keel::trainer
