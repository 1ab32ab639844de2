// TrainEngine: what one rank holds of the training (model stage, gradients, optimizer), and one
// step of it.
//
// Knows nothing of data files, checkpoints or logs. Owned by the trainer; Step and SummedLoss are
// collective over all ranks. Every method works wherever residency() has put the classes of state,
// and leaves what it found on the host there. Used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/tensors/shard_table.h"
#include "model/decoder.h"
#include "parallel/gradients/grad_buffer.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/context.h"
#include "parallel/pipeline/pipeline_runner.h"
#include "parallel/tensor/arithmetic.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/part_times.h"
#include "trainer/engine/residency.h"

namespace keel::trainer {

// StepVote: what each rank wants all to know with a step: that it was asked to end after it, and
// that its save is in flight. The run and the engines of its models hold the same one.
//
// Used from the training thread.
class StepVote {
 public:
  struct Wishes {
    bool stop = false;
    bool busy = false;
  };
  // How to ask this rank: when an update sums over the ranks anyway, as late as that.
  void set_mine(std::function<Wishes()> mine) { mine_ = std::move(mine); }
  // A step begins, of which nobody has said anything.
  void Begin() { all_ = {}; }
  // What some rank wanted at an update of this step; the same on every rank.
  bool stop() const { return all_.stop; }
  bool busy() const { return all_.busy; }

  // For who sums over the ranks: two numbers of this rank, and what they are in all.
  std::vector<double> Ballot() const {
    const Wishes mine = mine_ ? mine_() : Wishes{};
    return {mine.stop ? 1.0 : 0.0, mine.busy ? 1.0 : 0.0};
  }
  void Count(double stops, double busy) { all_ = {all_.stop || stops > 0, all_.busy || busy > 0}; }

 private:
  std::function<Wishes()> mine_;
  Wishes all_;
};

struct TrainEngineOptions {
  at::ScalarType dtype = at::kFloat;  // of the weights; bf16 has fp32 masters
  at::Device device = at::kCPU;
  bool sequence_parallel = false;  // only with tp > 1
  bool recompute = false;          // activations per block
  int64_t bucket_bytes = int64_t{32} << 20;
  AdamWOptions adamw;
  double clip_grad = 1.0;   // global norm; 0 does not clip
  bool inference = false;   // never learns: weights alone, no gradients and no optimizer
  bool value_head = false;  // a critic's, in place of the vocabulary's
  parallel::Arithmetic arithmetic = parallel::Arithmetic::kTraining;
  OffloadOptions offload;
  StepVote* vote = nullptr;                // what each Step carries, on every rank or on none
  parallel::CudaModule* copies = nullptr;  // see Residency; for tests
};

struct StepResult {
  // Mean over the loss tokens of the global batch, and the balance loss where the model has one;
  // the same on every rank.
  double loss = 0;
  double grad_norm = 0;           // before clipping
  bool skipped = false;           // loss or norm not finite: nothing was updated
  double forward_backward_s = 0;  // these three on a GPU as its stream takes them
  double reduce_s = 0;            // what of the gradient reduction was not hidden
  // Clip, update, all-gather. On a GPU of the update before this one, and 0 of the first: the host
  // does not wait for an update's end.
  double optimizer_s = 0;
  MoveSeconds moves;  // in none of the times above
  // With experts; see model/ops/router_load.h. Means over the micro-batches, each weighing as many
  // as its targets.
  struct Routers {
    double balance_loss = 0;  // times router_aux_loss_coef a part of `loss`, if the config says so
    double busiest_share =
        0;  // of a layer's assignments, to its busiest expert; of the worst layer
    std::map<std::string, double> Metrics() const {
      return {{"router/balance_loss", balance_loss},
              {"router/busiest_expert_share", busiest_share}};
    }
  };
  std::optional<Routers> routers;
};

class TrainEngine {
 public:
  // Called on the ranks of the last stage with the output [T, hidden] of a micro-batch
  // ([T / tp, hidden] with sequence parallelism): returns its share of the step's loss, a scalar.
  // Collective over TP, whose ranks return the same. `on_ready` is to be handed to the decoder's
  // loss.
  using LossFunction = std::function<at::Tensor(int microbatch, const at::Tensor& hidden,
                                                const model::Decoder::ReadyCallback& on_ready)>;

  // `context` must outlive this. Throws Error(kConfig) when the model does not fit the layout.
  TrainEngine(parallel::ParallelContext& context, const model::HfConfig& config,
              const TrainEngineOptions& options);

  // Random weights; see Decoder::Initialize. Not collective.
  void Initialize(uint64_t seed);
  // Of a model with adapters these alone: the base is not touched. Not collective.
  void InitializeAdapters(uint64_t seed);
  // State in host memory: of the arena when its class is on the host, else, on a CPU, of the
  // tensors themselves. Empty for the optimizer of an engine that does not learn.
  struct StateTables {
    ShardTable model;  // what a checkpoint has of the weights
    ShardTable optimizer;
    // What adapters stand beside, which a checkpoint has not: where LoadInto is of one engine.
    ShardTable base;
  };
  // What was written through tables.
  struct Written {
    bool weights = false;
    bool optimizer = false;
  };
  // Has `write` fill this rank's state from outside, as a load or an import does, and brings the
  // engine up to what it says it wrote. Its tables have every copy that the rank holds, with the
  // values that the state has, and are valid during the call. Masters are taken from the weights
  // unless both were written: they would be of other weights. If `write` throws, the state is
  // undefined. Not collective.
  void LoadInto(const std::function<Written(StateTables)>& write);
  // The same for several engines, filled by one call.
  static void LoadInto(const std::vector<TrainEngine*>& engines,
                       const std::function<Written(std::vector<StateTables>)>& write);

  // One optimizer step, of an engine that learns, over this DP rank's micro-batches. `loss_tokens`
  // is the number of targets that count over the global batch; `t` counts applied updates from 1.
  // options().vote goes with the sums of the norm.
  StepResult Step(const std::vector<model::ModelBatch>& microbatches, int64_t loss_tokens,
                  double lr, int64_t t);
  // The same with a loss of the caller's; StepResult::loss is the sum of the shares.
  // `balance_shares` [micro-batches] fp64 on any device, for a model with experts: how much each
  // micro-batch weighs in their balance loss, which add up to 1 over all DP ranks.
  StepResult Step(const std::vector<model::ModelBatch>& microbatches, const LossFunction& loss,
                  const at::Tensor& balance_shares, double lr, int64_t t);
  // Forwards only, without gradients, of this DP rank's micro-batches. What `take` returns is
  // summed and dropped. Loads the weights for the call when they are on the host.
  void Evaluate(const std::vector<model::ModelBatch>& microbatches, const LossFunction& take);
  // Sum over this DP rank's micro-batches of the targets' negative log-likelihoods, summed over DP;
  // the same on every rank. Before several calls, load the weights once: residency().LoadToRead.
  double SummedLoss(const std::vector<model::ModelBatch>& microbatches);

  // Of an engine that never learns: its weights become alpha times those of `from`, which has the
  // same parameters, and the rest of themselves, in fp32. Not collective.
  void MixIn(TrainEngine& from, double alpha);

  const TrainEngineOptions& options() const { return options_; }
  model::Decoder& decoder() { return decoder_; }
  const parallel::WeightStore& weights() const { return weights_; }
  parallel::GradBuffer& gradients() { return learning().gradients; }
  Residency& residency() { return residency_; }
  // Offloads the classes that options.offload names. Step brings back what it needs while it needs
  // it: gradients and weights for the step, optimizer state for the update.
  void OffloadIdle();

  // For a save beside the training: each canonical element by one owner, replicas numbered. Valid
  // until the next move of their class. What is on a GPU alone is being copied when this returns,
  // beside the compute: WaitArrived is to be called before memory of the tables is read. Steps that
  // follow wait by themselves before they overwrite what is still on its way.
  StateTables SaveTables();
  Status WaitArrived(const void* begin, int64_t bytes) {
    return residency_.WaitArrived(begin, static_cast<size_t>(bytes));
  }
  // This rank's weights where the model computes with them; each canonical element by one owner,
  // replicas numbered. Valid while they are on the device.
  using Which = parallel::WeightStore::Which;
  ShardTable DeviceTable(Which which = Which::kAll);
  bool has_adapters() const { return !weights_.frozen().empty(); }
  // What adapters stand beside, in host memory: on a GPU where an offload has put it there. Valid
  // until the weights move.
  ShardTable BaseTable(bool with_tied_copies = false);
  // Says whether the views are of the arena: a snapshot that no step changes, only a later move.
  bool ModelOnHost() const { return residency_.on_host(StateClass::kParams); }
  bool OptimizerOnHost() const { return residency_.on_host(StateClass::kOptimizer); }
  // `hook` is called before memory that the tables view is overwritten or released: slice by slice
  // by the update, bucket by bucket by the all-gather, piece by piece by moves. It may wait, and
  // must not throw.
  void set_before_write(const parallel::BeforeWrite& hook);

 private:
  // What an engine has that learns.
  struct Learning {
    parallel::GradBuffer gradients;
    DistributedAdamW optimizer;
    Learning(parallel::WeightStore& weights, parallel::ParallelContext& context,
             const AdamWOptions& adamw)
        : gradients(weights, context), optimizer(gradients, adamw) {}
  };
  Learning& learning();
  Residency::Tensors State() const;
  // The base's table as if it lay in `memory`, which is as large.
  ShardTable BaseTableIn(const at::Tensor& memory);
  StateTables Tables(bool with_tied_copies);
  // Masters are those of the weights again.
  void ResetMasters();
  // The routers' part of a step: what each micro-batch weighs, and on the last stage the sums.
  struct Balance {
    at::Tensor weights;
    double coefficient = 0;
    at::Tensor loss, busiest;
    at::Tensor Add(int microbatch, const model::RouterLoad& load);
  };
  // `balance` is null where nothing is learnt, or there is nothing to balance.
  parallel::StageCallbacks Callbacks(const std::vector<model::ModelBatch>& microbatches,
                                     const LossFunction& loss,
                                     const model::Decoder::ReadyCallback& on_ready,
                                     Balance* balance = nullptr);
  LossFunction TokenLoss(const std::vector<model::ModelBatch>& microbatches, double scale);
  // Sums `values` over ranks; those of the loss count on one TP rank of the last stage alone.
  std::vector<double> SumOverRanks(at::Tensor values);
  // What was summed already. The host waits for it.
  std::vector<double> ReadSums(at::Tensor sums);
  bool owns_loss() { return decoder_.last_stage() && context_.tp_rank() == 0; }

  friend class BaseOnly;
  parallel::ParallelContext& context_;
  TrainEngineOptions options_;
  model::Decoder decoder_;
  parallel::WeightStore weights_;
  std::unique_ptr<Learning> learning_;  // null with options.inference
  parallel::PipelineRunner runner_;
  Residency residency_;
  PartTimes update_times_;
  double update_s_ = 0;
};

// While it lives the engine, which has adapters, computes as their base: a reference that takes no
// memory. Null: nothing is done.
class BaseOnly {
 public:
  explicit BaseOnly(TrainEngine* engine) : engine_(engine) {
    if (engine_ != nullptr) engine_->decoder_.UseAdapters(false);
  }
  ~BaseOnly() {
    if (engine_ != nullptr) engine_->decoder_.UseAdapters(true);
  }
  BaseOnly(const BaseOnly&) = delete;
  BaseOnly& operator=(const BaseOnly&) = delete;

 private:
  TrainEngine* const engine_;
};

}  // namespace keel::trainer
