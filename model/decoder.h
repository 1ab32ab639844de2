// Decoder: one pipeline stage of a language model whose blocks are LayerSpecs, split over the TP
// group.
//
// The one model definition for training, scoring and generation. Declares its Parameters; a
// WeightStore gives them storage. All forwards are collective over TP. Used from one thread at a
// time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/config/head_split.h"
#include "model/config/hf_config.h"
#include "model/layers/block.h"
#include "model/ops/kv_cache.h"
#include "model/ops/ops.h"
#include "model/ops/rotation.h"
#include "model/ops/router_load.h"
#include "parallel/layout.h"
#include "parallel/parameter.h"
#include "parallel/tensor/arithmetic.h"
#include "parallel/tensor/tensor_parallel_layers.h"
#include "parallel/tensor/vocab_parallel_log_probs.h"
#include "parallel/tensor/vocab_parallel_loss.h"

namespace keel::model {

struct DecoderOptions {
  int stage = 0;  // of the pipeline
  int stages = 1;
  bool recompute = false;  // activations per block
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool value_head =
      false;  // a critic: `score.weight` [1, hidden] in place of the vocabulary's head
  std::vector<std::string> Validate(const HfConfig& config, int tp) const;  // every problem
};

// A packed micro-batch on the model's device.
struct ModelBatch {
  at::Tensor ids;      // [T] int64
  at::Tensor targets;  // [T] int64, kIgnoreTarget where no loss; may be undefined
  // [T] bool, of targets that are learnt from: which sequences count in the balance loss of
  // experts. Undefined: all targets.
  at::Tensor learnt;
  Packing packing;
};

class Decoder {
 public:
  // Throws Error(kConfig) on what Validate would list.
  Decoder(const HfConfig& config, parallel::TensorParallel tp, const DecoderOptions& options);
  ~Decoder();

  // In the order in which the forward uses them.
  const std::vector<parallel::Parameter*>& parameters() const { return parameter_list_; }
  const HfConfig& config() const { return config_; }
  int tp() const { return tp_.group->size(); }
  bool first_stage() const { return options_.stage == 0; }
  bool last_stage() const { return options_.stage == options_.stages - 1; }

  // Weights from N(0, initializer_range), norms 1, biases 0: element i of a canonical tensor is
  // draw i of the stream named by (seed, tensor), whatever the layout. Adapters change nothing yet:
  // A as PEFT draws it, B 0. `only_trained`: what is frozen keeps its values.
  void Initialize(uint64_t seed, bool only_trained = false);

  // Whether forwards compute with the adapters, as they do at first, or as the base model.
  void UseAdapters(bool on);

  // The stage's blocks. `input` is the previous stage's output [T, hidden] ([T / n, hidden] with
  // sequence parallelism), undefined on the first stage, which embeds batch.ids. The result is the
  // next stage's input. `on_ready`, when given, is called in the backward for each parameter whose
  // gradient is complete (embeddings excepted). With experts, what goes from stage to stage has
  // carried_rows() further rows, and `load`, when given, takes the sums of the layers up to here.
  using ReadyCallback = std::function<void(const parallel::Parameter&)>;
  at::Tensor Forward(const at::Tensor& input, const ModelBatch& batch,
                     const ReadyCallback& on_ready = {}, RouterLoad* load = nullptr);
  int64_t carried_rows() const {
    return CarriedRows(config_.moe, config_.hidden_size, options_.dtype);
  }
  // Last stage only, on Forward's result. See VocabParallelLoss and VocabParallelLogProbs.
  at::Tensor Loss(const at::Tensor& hidden, const at::Tensor& targets, double scale,
                  const ReadyCallback& on_ready = {});
  at::Tensor LogProbs(const at::Tensor& hidden, const at::Tensor& targets);
  // Differentiable; see VocabParallelLogProbs.
  parallel::TokenLogProbs LogProbsWithGradient(const at::Tensor& hidden, const at::Tensor& targets,
                                               double temperature, bool with_entropy,
                                               const ReadyCallback& on_ready = {});
  // log sum(p^2) over the vocabulary, [T] fp32; see VocabParallelLogSumSquares.
  at::Tensor LogSumSquares(const at::Tensor& hidden, const at::Tensor& targets, double temperature);
  // A critic's value of each token, [T] fp32 on every TP rank, differentiable. The gradient that
  // comes back must be the same on every TP rank.
  at::Tensor Values(const at::Tensor& hidden, const ReadyCallback& on_ready = {});
  at::Tensor Logits(const at::Tensor& hidden);  // [T, vocab]

  // Generation; the whole model must be on this stage. The batch's tokens go into the store, and
  // the result is the hidden states [outputs, hidden] of the rows that are asked for. No gradient.
  // On CPU a row does not depend on the batch around it, bit for bit. Collective over TP.
  at::Tensor Decode(const DecodeBatch& batch, const KvStore& store);
  // Decode in parts, for whoever runs it again by a recording: the batch's numbers for the device,
  // with room for texts of `longest` tokens; the inputs that `values`, the numbers there, are; and
  // the hidden states of all tokens. The last gives the device its work and reads nothing of the
  // host but how many tokens there are, where DecodesWithoutHost().
  DecodeNumbers NumbersOf(const DecodeBatch& batch, int64_t block_size, int64_t longest = 0);
  DecodeInputs InputsOf(const DecodeNumbers& numbers, const at::Tensor& values);
  at::Tensor DecodeAll(const DecodeInputs& inputs, const std::vector<DecodeSequence>& sequences,
                       const KvStore& store, parallel::Arithmetic arithmetic);
  bool DecodesWithoutHost() const;
  // Where that work finds weights, tables and memory of this object; another list is other work.
  std::vector<const void*> DecodeAddresses() const;
  // Logits [rows, vocab_size] of Decode's rows on every TP rank, in the model's dtype as in
  // training. Collective over TP.
  at::Tensor DecodeLogits(const at::Tensor& hidden, parallel::Arithmetic arithmetic);
  KvShape kv_shape() const;

 private:
  // Of a model with adapters what is declared is frozen, but for what learns beside it.
  enum class Learns { kUnlessFrozen, kAlways };
  parallel::Parameter* Declare(parallel::Parameter parameter,
                               Learns learns = Learns::kUnlessFrozen);
  void DeclareAdapter(parallel::Parameter& weight, std::vector<parallel::Parameter*>* block);
  void DeclareBlock(int layer);
  // A place's norm, without its parameters.
  Norm NormOf(const LayerSpec& spec) const;
  double EmbeddingScale() const;
  at::Tensor Embed(const ModelBatch& batch);
  at::Tensor FinalNorm(const at::Tensor& hidden, const ReadyCallback& on_ready);
  // Decode's memory, kept from call to call.
  struct Workspace {
    at::Tensor normed, projected, qkv, attended, gate_up, activated, beside;
  };

  HfConfig config_;
  parallel::TensorParallel tp_;
  DecoderOptions options_;
  HeadSplit split_;
  AttentionShape attention_;
  parallel::LayerRange layers_;
  std::vector<std::unique_ptr<parallel::Parameter>> parameters_;
  std::vector<parallel::Parameter*> parameter_list_;
  parallel::Parameter* embedding_ = nullptr;  // first stage
  parallel::Parameter* positions_ = nullptr;  // where positions are learned
  std::vector<Block> blocks_;
  Norm final_norm_;  // last stage
  parallel::Parameter* head_weight_ = nullptr;
  parallel::Parameter* head_bias_ = nullptr;  // may be null
  parallel::Parameter* score_ = nullptr;      // a critic's, instead of head_weight_
  parallel::VocabParallelHead head_;
  Rotator main_rope_;
  Rotator local_rope_;  // main_rope_'s spec where no layer has another
  Workspace workspace_;
};

}  // namespace keel::model
