#include "model/decoder.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/hash.h"
#include "common/tensors/fill_normal.h"
#include "model/config/layout_fit.h"
#include "model/layers/whole_parameter.h"
#include "model/ops/learned_positions.h"
#include "model/ops/recompute.h"
#include "model/value_head.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_tensor.h"
#include "parallel/tensor/regions.h"

namespace keel::model {

using parallel::Parameter;
using parallel::ParameterPiece;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Identity whose backward says that everything after it has been differentiated.
struct ReadyMark : torch::autograd::Function<ReadyMark> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::function<void()>& on_ready) {
    parallel::Capture(context, "on_ready", on_ready);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    parallel::Captured<std::function<void()>>(context, "on_ready")();
    return {gradients[0], {}};
  }
};

at::Tensor MarkReady(const at::Tensor& x, const Decoder::ReadyCallback& on_ready,
                     std::vector<Parameter*> parameters) {
  if (!on_ready || !at::GradMode::is_enabled()) return x;
  std::erase_if(parameters, [](const Parameter* p) { return !p->trained(); });
  return ReadyMark::apply(x, std::function<void()>([on_ready, parameters = std::move(parameters)] {
                            for (const Parameter* p : parameters) on_ready(*p);
                          }));
}

// The block's forward, of which nothing is kept for the backward, which runs it again.
Block::Stream RunAgain(const Block& block, const Block::Stream& in, const TrainPass& pass) {
  const auto run = [&block, pass](const Recomputed& values) -> Recomputed {
    const Block::Stream out = block.Forward(pass, {values.x, {values.beside}});
    return {out.x, out.load.sums};
  };
  const Recomputed out = Recompute(run, {in.x, in.load.sums});
  return {out.x, {out.beside}};
}

}  // namespace

std::vector<std::string> DecoderOptions::Validate(const HfConfig& config, int tp) const {
  return LayoutProblems(config, {tp, stages});
}

Decoder::Decoder(const HfConfig& config, parallel::TensorParallel tp, const DecoderOptions& options)
    : config_(config),
      tp_(tp),
      options_(options),
      main_rope_(config.rope, config.rope_dims(), options.device),
      local_rope_(config.local_rope.value_or(config.rope), config.rope_dims(), options.device) {
  if (options.value_head) config_.tie_word_embeddings = false;  // nothing to tie to
  const int tp_size = tp.group->size();
  const auto problems = options.Validate(config, tp_size);
  if (!problems.empty())
    throw Error(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
  split_ = HeadsOfRank(config, tp_size, tp.group->rank());
  attention_ = {split_.heads.size, split_.kv_heads.size, config.head_dim};
  layers_ = parallel::LayersOfStage(static_cast<int>(config.num_hidden_layers), options.stages,
                                    options.stage);

  // Vocabulary rows of this rank; the rows past the vocabulary are padding and in no piece.
  const int64_t vocab_rows = parallel::VocabRowsPerRank(config.vocab_size, tp_size);
  const int64_t vocab_first = tp.group->rank() * vocab_rows;
  const int64_t vocab_valid = std::clamp<int64_t>(config.vocab_size - vocab_first, 0, vocab_rows);
  const auto vocabulary = [&](const char* storage, const char* canonical) {
    Parameter p;
    p.name = storage;
    p.shape = {vocab_rows, config.hidden_size};
    p.init_stddev = config.initializer_range;
    if (vocab_valid > 0) {
      p.pieces.push_back({canonical,
                          {config.vocab_size, config.hidden_size},
                          {{vocab_first, 0}, {vocab_valid, config.hidden_size}},
                          0});
    }
    return p;
  };

  if (first_stage()) {
    Parameter p = vocabulary("embedding.weight", "model.embed_tokens.weight");
    if (config.embedding_range > 0) p.init_stddev = config.embedding_range;
    // A critic has no head that the last stage could hold a copy for.
    p.tied = config_.tie_word_embeddings && options.stages > 1 && !options.value_head;
    embedding_ = Declare(std::move(p));
    if (const LearnedPositions learned = config.learned_positions(); learned.rows > 0) {
      Parameter table;
      table.name = "positions.weight";
      table.shape = {learned.rows, config.hidden_size};
      table.pieces = {{"model.embed_positions.weight", table.shape, Box::Whole(table.shape), 0}};
      table.replicated_over = kWhole;
      table.gradient_sum_over = WholeSum(tp.sequence_parallel);
      table.init_stddev = config.initializer_range;
      positions_ = Declare(std::move(table));
    }
  }
  for (int layer = layers_.begin; layer < layers_.end; ++layer) DeclareBlock(layer);
  if (last_stage()) {
    const LayerSpec spec = config.Layer(0);
    final_norm_ = NormOf(spec);
    const auto of_norm = [&](const char* part, double value) {
      Parameter p;
      p.name = fmt::format("final_norm.{}", part);
      p.shape = {config.hidden_size};
      p.pieces = {{fmt::format("model.norm.{}", part), p.shape, Box::Whole(p.shape), 0}};
      p.replicated_over = kWhole;
      p.gradient_sum_over = WholeSum(tp.sequence_parallel);
      p.init_value = value;
      return Declare(std::move(p));
    };
    final_norm_.weight = of_norm("weight", 1 - final_norm_.options.offset);
    if (spec.norm_bias) final_norm_.bias = of_norm("bias", 0);
    if (options.value_head) {
      Parameter score;
      score.name = "score.weight";
      score.shape = {1, config.hidden_size};
      score.pieces = {{"score.weight", score.shape, Box::Whole(score.shape), 0}};
      score.replicated_over = kWhole;
      score.gradient_sum_over = WholeSum(tp.sequence_parallel);
      score.init_stddev = config.initializer_range;
      score_ = Declare(std::move(score), Learns::kAlways);
      return;
    }
    if (!config_.tie_word_embeddings) {
      head_weight_ = Declare(vocabulary("head.weight", "lm_head.weight"));
    } else if (first_stage()) {
      head_weight_ = embedding_;
    } else {
      Parameter copy = vocabulary("head.weight", "model.embed_tokens.weight");
      copy.tied = true;
      copy.replica = true;
      head_weight_ = Declare(std::move(copy));
    }
    if (config.head_bias()) {
      Parameter bias;
      bias.name = "head.bias";
      bias.shape = {vocab_rows};
      if (vocab_valid > 0)
        bias.pieces = {{"lm_head.bias", {config.vocab_size}, {{vocab_first}, {vocab_valid}}, 0}};
      head_bias_ = Declare(std::move(bias));
    }
    head_ = {tp_, head_weight_, head_bias_, config.vocab_size};
    head_.divisor = config.logits_scaling / config.logit_scale;
    head_.softcap = config.logit_softcap;
  }
}

Decoder::~Decoder() = default;

void Decoder::UseAdapters(bool on) {
  for (Parameter* p : parameter_list_)
    if (p->adapter) p->adapter->on = on;
}

Parameter* Decoder::Declare(Parameter parameter, Learns learns) {
  parameter.frozen = config_.adapter.used() && learns == Learns::kUnlessFrozen;
  parameters_.push_back(std::make_unique<Parameter>(std::move(parameter)));
  parameter_list_.push_back(parameters_.back().get());
  return parameter_list_.back();
}

namespace {

// By all threads. A number depends on nothing but its place in the whole tensor.
void DrawPiece(const Philox& rng, const Parameter& p, const ParameterPiece& piece,
               const StridedView& view, DType dtype, double stddev) {
  const int dim = p.RowDim(piece);
  at::parallel_for(0, p.RowsOf(piece), parallel::RowGrain(p.row_size()),
                   [&](int64_t begin, int64_t end) {
                     Box part = piece.box;
                     part.offset[dim] += begin;
                     part.size[dim] = end - begin;
                     StridedView there = view;
                     there.data += begin * view.strides[dim] * DTypeSize(dtype);
                     FillNormal(rng, piece.shape, part, there, dtype, 0, stddev);
                   });
}

}  // namespace

void Decoder::Initialize(uint64_t seed, bool only_trained) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters_) {
    if (only_trained && !p->trained()) continue;
    const bool by_log = p->init_log_below > 0;
    const bool evenly = by_log || p->init_evenly_within > 0;
    const double stddev = evenly ? 1 : p->init_stddev;
    const at::ScalarType drawn = evenly ? at::kFloat : p->value.scalar_type();
    const at::Tensor host =
        at::empty(p->value.sizes(), p->value.options().device(at::kCPU).dtype(drawn));
    host.fill_(p->init_value);
    for (const ParameterPiece& piece : p->pieces) {
      if (stddev == 0) continue;
      DrawPiece(Philox(seed, Hash64(piece.name)), *p, piece, p->ViewOf(piece, host),
                drawn == at::kBFloat16 ? DType::kBF16 : DType::kF32, stddev);
    }
    // Of a normal number its place among all is drawn evenly.
    if (by_log) {
      // Away from 0, whose logarithm is none.
      host.copy_(at::special_ndtr(host).mul_(p->init_log_below).clamp_min_(0.01).log_());
    } else if (evenly) {
      host.copy_(at::special_ndtr(host).mul_(2).sub_(1).mul_(p->init_evenly_within));
    } else if (p->init_stddev != 0) {
      // Padding rows of the vocabulary stay zero.
      int64_t valid = 0;
      for (const ParameterPiece& piece : p->pieces) valid += p->RowsOf(piece);
      host.narrow(0, valid, p->rows() - valid).zero_();
    }
    p->value.copy_(host);
  }
}

Norm Decoder::NormOf(const LayerSpec& spec) const {
  return {spec.norm_kind, {config_.rms_norm_eps, spec.norm_plus_one ? 1.0 : 0.0}};
}

// The family's factor is rounded to the model's dtype, and the file's is not, as transformers has
// them.
double Decoder::EmbeddingScale() const {
  const at::Tensor rounded = at::scalar_tensor(config_.embedding_scale(), options_.dtype);
  return rounded.item<double>() * config_.embedding_multiplier;
}

at::Tensor Decoder::Embed(const ModelBatch& batch) {
  at::Tensor x = parallel::VocabParallelEmbedding(tp_, embedding_).Forward(batch.ids);
  if (const double scale = EmbeddingScale(); scale != 1) x = x * scale;
  if (positions_ == nullptr) return x;
  for (size_t s = 0; s < batch.packing.sequences(); ++s) {
    TORCH_CHECK(batch.packing.tokens(s) <= config_.max_position_embeddings, "a text of ",
                batch.packing.tokens(s), " tokens: positions are learned for ",
                config_.max_position_embeddings);
  }
  at::Tensor mine = batch.packing.positions;
  if (tp_.sequence_parallel) mine = mine.narrow(0, tp_.group->rank() * x.size(0), x.size(0));
  return AddPositions(x, mine, config_.learned_positions().first, *positions_);
}

at::Tensor Decoder::Forward(const at::Tensor& input, const ModelBatch& batch,
                            const ReadyCallback& on_ready, RouterLoad* load) {
  const bool moe = config_.moe.experts > 0;
  TrainPass pass{tp_, batch.packing, {main_rope_.Of(batch.packing), {}}, {}, nullptr};
  pass.rotations.local = config_.local_rope ? local_rope_.Of(batch.packing) : pass.rotations.main;
  if (tp_.arithmetic == parallel::Arithmetic::kBatchInvariant) {
    pass.prompts = std::make_shared<PackedPrompts>(
        batch.packing, attention_,
        at::TensorOptions().dtype(options_.dtype).device(options_.device));
  }
  if (moe) {
    at::Tensor learnt = batch.learnt;
    if (!learnt.defined() && batch.targets.defined()) learnt = batch.targets.ge(0);
    pass.counted = CountedTokens(learnt, batch.packing);
  }
  Block::Stream stream;
  if (first_stage()) {
    stream = {Embed(batch), RouterLoad::Zero(config_.moe, options_.device)};
  } else if (moe) {
    std::tie(stream.x, stream.load) = SplitLoad(input, config_.moe);
  } else {
    stream.x = input;
  }
  const bool learning = at::GradMode::is_enabled();
  const bool recompute = options_.recompute && learning;
  // What is computed again, or goes to another stage, has a gradient; that of a frozen embedding
  // asks for none.
  if (learning && config_.adapter.used() && !stream.x.requires_grad())
    stream.x = stream.x.detach().requires_grad_(recompute || options_.stages > 1);
  for (const Block& block : blocks_) {
    stream.x = MarkReady(stream.x, on_ready, block.all);
    stream = recompute ? RunAgain(block, stream, pass) : block.Forward(pass, stream);
  }
  if (load != nullptr) *load = stream.load;
  return moe && !last_stage() ? AppendLoad(stream.x, stream.load) : stream.x;
}

// The last norm, behind which the head's gradient is complete.
at::Tensor Decoder::FinalNorm(const at::Tensor& hidden, const ReadyCallback& on_ready) {
  std::vector<Parameter*> done = {final_norm_.weight};
  if (final_norm_.bias != nullptr) done.push_back(final_norm_.bias);
  Parameter* head = score_ != nullptr ? score_ : head_weight_;
  if (head != embedding_) done.push_back(head);
  if (head_bias_ != nullptr) done.push_back(head_bias_);
  return final_norm_.Forward(MarkReady(hidden, on_ready, std::move(done)));
}

at::Tensor Decoder::Loss(const at::Tensor& hidden, const at::Tensor& targets, double scale,
                         const ReadyCallback& on_ready) {
  return parallel::VocabParallelLoss(head_, FinalNorm(hidden, on_ready), targets, scale);
}

at::Tensor Decoder::LogProbs(const at::Tensor& hidden, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  return parallel::VocabParallelLogProbs(head_, FinalNorm(hidden, {}), targets).log_probs;
}

parallel::TokenLogProbs Decoder::LogProbsWithGradient(const at::Tensor& hidden,
                                                      const at::Tensor& targets, double temperature,
                                                      bool with_entropy,
                                                      const ReadyCallback& on_ready) {
  return parallel::VocabParallelLogProbs(head_, FinalNorm(hidden, on_ready), targets, temperature,
                                         with_entropy);
}

at::Tensor Decoder::LogSumSquares(const at::Tensor& hidden, const at::Tensor& targets,
                                  double temperature) {
  const at::NoGradGuard no_grad;
  return parallel::VocabParallelLogSumSquares(head_, FinalNorm(hidden, {}), targets, temperature);
}

at::Tensor Decoder::Values(const at::Tensor& hidden, const ReadyCallback& on_ready) {
  TORCH_CHECK(score_ != nullptr, "Values needs the last stage of a model with a value head");
  const at::Tensor values = ValueHead(FinalNorm(hidden, on_ready), *score_);
  return tp_.sequence_parallel ? parallel::JoinFromSequenceParallel(values, *tp_.group) : values;
}

at::Tensor Decoder::Logits(const at::Tensor& hidden) {
  const at::NoGradGuard no_grad;
  return parallel::GatheredLogits(head_, final_norm_.Forward(hidden));
}

}  // namespace keel::model
