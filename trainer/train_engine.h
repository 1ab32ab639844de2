// TrainEngine: what one rank holds of the training (model stage, gradients, optimizer), and one
// step of it.
//
// Knows nothing of data files, checkpoints or logs. Owned by the trainer; all methods but the
// tables are collective over all ranks. Used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/shard_table.h"
#include "model/decoder.h"
#include "parallel/context.h"
#include "parallel/grad_buffer.h"
#include "parallel/pipeline_runner.h"
#include "trainer/host_mirror.h"
#include "trainer/optimizer.h"

namespace keel::trainer {

struct TrainEngineOptions {
  at::ScalarType dtype = at::kFloat;  // of the weights; bf16 has fp32 masters
  at::Device device = at::kCPU;
  bool sequence_parallel = false;  // only with tp > 1
  bool recompute = false;          // activations per block
  int64_t bucket_bytes = int64_t{32} << 20;
  AdamWOptions adamw;
  double clip_grad = 1.0;  // global norm; 0 does not clip
};

struct StepResult {
  double loss = 0;       // mean over the loss tokens of the global batch; the same on every rank
  double grad_norm = 0;  // before clipping
  bool skipped = false;  // loss or norm not finite: nothing was updated
  bool stop = false;     // some rank asked to stop; the same on every rank
  double forward_backward_s = 0;
  double reduce_s = 0;     // what of the gradient reduction was not hidden
  double optimizer_s = 0;  // clip, update, all-gather
};

class TrainEngine {
 public:
  // `context` must outlive this. Throws Error(kConfig) when the model does not fit the layout.
  TrainEngine(parallel::ParallelContext& context, const model::HfConfig& config,
              const TrainEngineOptions& options);

  // Random weights; see Decoder::Initialize. Not collective.
  void Initialize(uint64_t seed);
  // After weights were written from outside without masters: masters are taken from them.
  void WeightsChanged() { optimizer_.ResetMasters(); }

  // One optimizer step over this DP rank's micro-batches. `loss_tokens` is the number of targets
  // that count over the global batch; `t` counts applied updates from 1. `stop` is this rank's wish
  // to end after the step; it travels with the sums of the norm.
  StepResult Step(const std::vector<model::ModelBatch>& microbatches, int64_t loss_tokens,
                  double lr, int64_t t, bool stop = false);
  // Sum over this DP rank's micro-batches of the targets' negative log-likelihoods, summed over DP;
  // the same on every rank.
  double SummedLoss(const std::vector<model::ModelBatch>& microbatches);

  model::Decoder& decoder() { return decoder_; }
  parallel::GradBuffer& gradients() { return gradients_; }
  // Tables for a save (each canonical element by one owner, replicas numbered) or for a load (every
  // copy is filled).
  // The views are host memory: on a device, call CopyToHost before a save reads them and
  // CopyToDevice after a load has written them; on a CPU both do nothing.
  ShardTable ModelTable(bool for_load);
  ShardTable OptimizerTable(bool for_load);
  void CopyToHost() { mirror_.CopyToHost(); }
  void CopyToDevice() { mirror_.CopyToDevice(); }

 private:
  parallel::StageCallbacks Callbacks(const std::vector<model::ModelBatch>& microbatches,
                                     double scale, const model::Decoder::ReadyCallback& on_ready);
  // Sums `values` over ranks; those of the loss count on one TP rank of the last stage alone.
  std::vector<double> SumOverRanks(std::vector<double> values);
  bool owns_loss() { return decoder_.last_stage() && context_.tp_rank() == 0; }

  parallel::ParallelContext& context_;
  TrainEngineOptions options_;
  model::Decoder decoder_;
  parallel::GradBuffer gradients_;
  DistributedAdamW optimizer_;
  parallel::PipelineRunner runner_;
  HostMirror mirror_;
};

}  // namespace keel::trainer
