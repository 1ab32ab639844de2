// Decoder::DeclareBlock: a block's parameters, as boxes of the canonical weights.

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/family_table.h"
#include "model/decoder.h"
#include "model/layers/adapter_parameters.h"
#include "model/layers/block.h"
#include "model/layers/whole_parameter.h"

namespace keel::model {

using parallel::Parameter;
using parallel::ParameterPiece;

namespace {

// One of several canonical weights whose output rows are split over TP.
struct Split {
  std::string name;
  int64_t rows = 0;  // global
  Span mine;
};

// Declares the parameters of one block under its two names.
class BlockParameters {
 public:
  BlockParameters(const HfConfig& config, int layer, std::function<Parameter*(Parameter)> declare)
      : hidden_(config.hidden_size),
        input_rows_(config.Layer(layer).input_rows),
        stddev_(config.initializer_range),
        canonical_(fmt::format("model.layers.{}.", layer)),
        storage_(fmt::format("layers.{}.", layer)),
        declare_(std::move(declare)) {}

  // That every TP rank has whole. With `sum_gradient` each of them sees only some tokens or heads.
  Parameter* Whole(const std::string& name, const Dims& shape, bool sum_gradient) {
    Parameter p;
    p.name = storage_ + name;
    p.shape = shape;
    p.pieces = {{canonical_ + name, p.shape, Box::Whole(p.shape), 0}};
    p.replicated_over = kWhole;
    p.gradient_sum_over = WholeSum(sum_gradient);
    return declare_(std::move(p));
  }

  // That every TP rank has whole, and nobody trains.
  Parameter* Constant(const std::string& name, const Dims& shape) {
    Parameter p;
    p.name = storage_ + name;
    p.shape = shape;
    p.pieces = {{canonical_ + name, p.shape, Box::Whole(p.shape), 0}};
    p.replicated_over = kWhole;
    p.constant = true;
    return declare_(std::move(p));
  }

  // Output rows one after another. columns 0: of vectors.
  Parameter* Rows(const char* name, const char* suffix, const std::vector<Split>& splits,
                  int64_t columns, const parallel::TpHolders& holders = {}) {
    Parameter p;
    p.name = storage_ + name;
    int64_t at = 0;
    for (const Split& split : splits) {
      ParameterPiece piece;
      piece.name = canonical_ + split.name + suffix;
      piece.row_begin = at;
      if (columns > 0) {
        SetMatrix(&piece, {split.rows, columns}, split.mine, {0, columns});
      } else {
        piece.shape = {split.rows};
        piece.box = {{split.mine.begin}, {split.mine.size}};
      }
      p.pieces.push_back(std::move(piece));
      at += split.mine.size;
    }
    p.shape = columns > 0 ? Dims{at, columns} : Dims{at};
    p.init_stddev = columns > 0 ? stddev_ : 0;
    p.tp_holders = holders;
    return declare_(std::move(p));
  }

  // Of clamped experts, which stand in one canonical tensor, matrices [experts, rows, columns] or
  // vectors [experts, n]: `mine` of the dim that is split, of one expert behind another, each a
  // piece.
  enum class SplitDim { kNone, kRows, kColumns };
  Parameter* Experts(const std::string& storage, const std::string& name, const Dims& shape,
                     SplitDim split, const Span& mine) {
    const bool matrix = shape.size() == 3;
    Parameter p;
    p.name = storage_ + storage;
    ParameterPiece piece = {canonical_ + name, shape, Box::Whole(shape), 0};
    piece.box.size[0] = 1;
    if (split != SplitDim::kNone) {
      const int dim = split == SplitDim::kRows ? 1 : shape.size() - 1;
      piece.box.offset[dim] = mine.begin;
      piece.box.size[dim] = mine.size;
    }
    const int64_t rows = piece.box.size[1];
    for (int64_t e = 0; e < shape[0]; ++e) {
      piece.box.offset[0] = e;
      piece.row_begin = e * rows;
      p.pieces.push_back(piece);
    }
    p.shape = matrix ? Dims{shape[0] * rows, piece.box.size[2]} : Dims{shape[0] * rows};
    p.init_stddev = matrix ? stddev_ : 0;
    if (split == SplitDim::kNone) {
      p.replicated_over = kWhole;
      p.gradient_sum_over = WholeSum(true);
    }
    return declare_(std::move(p));
  }

  // Of a convolution: the channels of canonical weights [channels, 1, taps], one after another.
  Parameter* Taps(const std::string& storage, const std::vector<Split>& splits, int64_t taps) {
    Parameter p;
    p.name = storage_ + storage;
    int64_t at = 0;
    for (const Split& split : splits) {
      p.pieces.push_back({canonical_ + split.name,
                          {split.rows, 1, taps},
                          {{split.mine.begin, 0, 0}, {split.mine.size, 1, taps}},
                          at});
      at += split.mine.size;
    }
    p.shape = {at, 1, taps};
    p.init_stddev = stddev_;
    return declare_(std::move(p));
  }

  // Canonical weights [hidden, columns], one after another, whose input columns are split over TP.
  Parameter* Columns(const std::string& name, const std::vector<std::string>& weights,
                     int64_t columns, const Span& mine) {
    Parameter p;
    p.name = storage_ + name;
    for (size_t i = 0; i < weights.size(); ++i) {
      ParameterPiece piece;
      piece.name = canonical_ + weights[i];
      piece.row_begin = static_cast<int64_t>(i) * hidden_;
      SetMatrix(&piece, {hidden_, columns}, {0, hidden_}, mine);
      p.pieces.push_back(std::move(piece));
    }
    p.shape = {static_cast<int64_t>(weights.size()) * hidden_, mine.size};
    p.init_stddev = stddev_;
    return declare_(std::move(p));
  }

 private:
  // Those rows and columns of a matrix of outputs x inputs, as files have it.
  void SetMatrix(ParameterPiece* piece, const Dims& shape, const Span& rows,
                 const Span& columns) const {
    piece->shape = shape;
    piece->box = {{rows.begin, columns.begin}, {rows.size, columns.size}};
    piece->transposed = input_rows_;
    if (!input_rows_) return;
    for (Dims* dims : {&piece->shape, &piece->box.offset, &piece->box.size})
      std::swap((*dims)[0], (*dims)[1]);
  }

  int64_t hidden_;
  bool input_rows_;
  double stddev_;
  std::string canonical_, storage_;
  std::function<Parameter*(Parameter)> declare_;
};

// Gate and up of a column stand beside each other, so that a rank has the pairs of its width.
void DeclareClamped(BlockParameters& declare, const HfConfig& config, const Span& mine,
                    MoeFeedForward* moe) {
  using SplitDim = BlockParameters::SplitDim;
  const MoeNames& names = FamilyOf(config.family).moe_names;
  const MoeSpec& spec = moe->spec;
  const int64_t hidden = config.hidden_size;
  const std::string experts = fmt::format("{}.", names.experts);
  const Span pairs = {2 * mine.begin, 2 * mine.size};
  moe->router_bias = declare.Whole(fmt::format("{}.bias", names.router), {spec.experts}, true);
  moe->router_bias->init_stddev = config.initializer_range;
  moe->gate_up = declare.Experts("experts.gate_up.weight", experts + "gate_up_proj",
                                 {spec.experts, hidden, 2 * spec.width}, SplitDim::kColumns, pairs);
  moe->gate_up_bias = declare.Experts("experts.gate_up.bias", experts + "gate_up_proj_bias",
                                      {spec.experts, 2 * spec.width}, SplitDim::kColumns, pairs);
  moe->down = declare.Experts("experts.down.weight", experts + "down_proj",
                              {spec.experts, spec.width, hidden}, SplitDim::kRows, mine);
  moe->down_bias = declare.Experts("experts.down.bias", experts + "down_proj_bias",
                                   {spec.experts, hidden}, SplitDim::kNone, {});
  moe->adds_down_bias = mine.begin == 0;
}

MoeFeedForward DeclareExperts(BlockParameters& declare, const HfConfig& config,
                              const LayerSpec& spec, const HeadSplit& split) {
  const Span& mine = split.expert;
  const MoeNames& names = FamilyOf(config.family).moe_names;
  MoeFeedForward moe;
  moe.spec = spec.moe;
  moe.activation = spec.activation;
  moe.router = declare.Whole(fmt::format("{}.weight", names.router),
                             {spec.moe.experts, config.hidden_size}, true);
  moe.router->init_stddev = config.initializer_range;
  if (spec.moe.kind == ExpertKind::kClamped) {
    DeclareClamped(declare, config, mine, &moe);
    return moe;
  }
  if (spec.moe.choice_bias)
    moe.choice_bias = declare.Constant(names.choice_bias, {spec.moe.experts});
  std::vector<Split> gate_up;
  std::vector<std::string> down;
  for (int64_t e = 0; e < spec.moe.experts; ++e) {
    const std::string expert = fmt::format("{}.{}.", names.experts, e);
    gate_up.push_back({expert + names.gate, spec.moe.width, mine});
    gate_up.push_back({expert + names.up, spec.moe.width, mine});
    down.push_back(expert + names.down + ".weight");
  }
  moe.gate_up = declare.Rows("experts.gate_up.weight", ".weight", gate_up, config.hidden_size);
  moe.down = declare.Columns("experts.down.weight", down, spec.moe.width, mine);
  if (spec.moe.shared_width == 0) return moe;
  const std::string shared = fmt::format("{}.", names.shared);
  const int64_t width = spec.moe.shared_width;
  moe.shared.activation = spec.activation;
  moe.shared.gate_up = declare.Rows(
      "shared.gate_up.weight", ".weight",
      {{shared + names.gate, width, split.shared}, {shared + names.up, width, split.shared}},
      config.hidden_size);
  moe.shared.down =
      declare.Columns("shared.down.weight", {shared + names.down + ".weight"}, width, split.shared);
  if (!spec.moe.shared_gated) return moe;
  moe.shared_gate =
      declare.Whole(fmt::format("{}.weight", names.shared_gate), {1, config.hidden_size}, true);
  moe.shared_gate->init_stddev = config.initializer_range;
  return moe;
}

GatedFeedForward DeclareGated(BlockParameters& declare, const HfConfig& config,
                              const LayerSpec& spec, const Span& mine, bool sum_bias) {
  const int64_t ffn = config.intermediate_size;
  GatedFeedForward dense;
  dense.activation = spec.activation;
  const std::vector<Split> gate_up = {{"mlp.gate_proj", ffn, mine}, {"mlp.up_proj", ffn, mine}};
  dense.gate_up = declare.Rows("gate_up.weight", ".weight", gate_up, config.hidden_size);
  dense.down = declare.Columns("mlp.down_proj.weight", {"mlp.down_proj.weight"}, ffn, mine);
  if (config.mlp_bias) {
    dense.gate_up_bias = declare.Rows("gate_up.bias", ".bias", gate_up, 0);
    dense.down_bias = declare.Whole("mlp.down_proj.bias", {config.hidden_size}, sum_bias);
  }
  return dense;
}

PlainFeedForward DeclarePlain(BlockParameters& declare, const HfConfig& config,
                              const LayerSpec& spec, const Span& mine, bool sum_bias) {
  const int64_t ffn = config.intermediate_size;
  const std::vector<Split> rows = {{"mlp.up_proj", ffn, mine}};
  PlainFeedForward plain;
  plain.activation = spec.activation;
  plain.up = declare.Rows("up.weight", ".weight", rows, config.hidden_size);
  plain.down = declare.Columns("mlp.down_proj.weight", {"mlp.down_proj.weight"}, ffn, mine);
  if (config.mlp_bias) {
    plain.up_bias = declare.Rows("up.bias", ".bias", rows, 0);
    plain.down_bias = declare.Whole("mlp.down_proj.bias", {config.hidden_size}, sum_bias);
  }
  return plain;
}

// The projections of multi-head latent attention. What heads share is of every TP rank's heads, so
// that its gradient is always summed.
LatentProjection DeclareLatent(BlockParameters& declare, const HfConfig& config,
                               const AttentionShape& shape, const Span& heads) {
  const LatentSpec& spec = config.latent;
  LatentProjection latent;
  latent.spec = spec;
  latent.shape = shape;
  const auto shared = [&](const std::string& name, int64_t rows, Parameter** bias) {
    Parameter* const weight = declare.Whole(name + ".weight", {rows, config.hidden_size}, true);
    weight->init_stddev = config.initializer_range;
    if (config.attention_bias) *bias = declare.Whole(name + ".bias", {rows}, true);
    return weight;
  };
  const auto norm = [&](const char* name, int64_t dims) {
    Parameter* const weight = declare.Whole(name, {dims}, true);
    weight->init_value = 1;
    return weight;
  };
  const auto of_heads = [&](const char* storage, const char* name, int64_t dims, int64_t from) {
    return declare.Rows(
        storage, ".weight",
        {{name, config.num_attention_heads * dims, {heads.begin * dims, heads.size * dims}}}, from);
  };
  if (spec.q_rank > 0) {
    latent.q_shared = shared("self_attn.q_a_proj", spec.q_rank, &latent.q_shared_bias);
    latent.q_norm = norm("self_attn.q_a_layernorm.weight", spec.q_rank);
    latent.q_heads = of_heads("q_b.weight", "self_attn.q_b_proj", spec.key_dims(), spec.q_rank);
  } else {
    latent.q_heads = of_heads("q.weight", "self_attn.q_proj", spec.key_dims(), config.hidden_size);
  }
  latent.kv_shared = shared("self_attn.kv_a_proj_with_mqa", spec.kv_rank + spec.turned_dims,
                            &latent.kv_shared_bias);
  latent.kv_norm = norm("self_attn.kv_a_layernorm.weight", spec.kv_rank);
  latent.kv_heads = of_heads("kv_b.weight", "self_attn.kv_b_proj", spec.kv_dims(), spec.kv_rank);
  return latent;
}

// The projections of the usual attention onto query, key and value heads, and a norm of these.
// `one`: the weight of a norm that changes nothing.
QkvProjection DeclareQkv(BlockParameters& declare, const HfConfig& config, const HeadSplit& split,
                         const parallel::TensorParallel& tp, double one,
                         AttentionLayer* attention) {
  QkvProjection qkv;
  const int64_t hidden = config.hidden_size;
  const int64_t d = config.head_dim;
  const int64_t q = config.num_attention_heads * d;
  const int64_t kv = config.num_key_value_heads * d;
  const Span my_q = {split.heads.begin * d, split.heads.size * d};
  const Span my_kv = {split.kv_heads.begin * d, split.kv_heads.size * d};
  std::vector<Split> only_kv = {{"self_attn.k_proj", kv, my_kv}, {"self_attn.v_proj", kv, my_kv}};
  const LayerSpec spec = config.Layer(0);
  const char* const joined = "self_attn.query_key_value";
  if (spec.qkv == QkvTensors::kByHead) {
    // Of each head q, k and v stand beside each other, and it has them of its own.
    std::vector<Split> parts;
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t head = split.heads.begin; head < split.heads.end(); ++head)
        parts.push_back({joined, 3 * q, {(3 * head + part) * d, d}});
    }
    qkv.weight = declare.Rows("qkv.weight", ".weight", parts, hidden);
    if (config.attention_bias) qkv.bias = declare.Rows("qkv.bias", ".bias", parts, 0);
    return qkv;
  }
  std::vector<Split> only_q, gates;
  if (spec.gated) {
    // Of each head q and gates stand beside each other.
    qkv.gates = my_q.size;
    for (int64_t head = split.heads.begin; head < split.heads.end(); ++head) {
      only_q.push_back({"self_attn.q_proj", 2 * q, {2 * head * d, d}});
      gates.push_back({"self_attn.q_proj", 2 * q, {(2 * head + 1) * d, d}});
    }
  } else if (spec.qkv == QkvTensors::kJoined) {
    const int64_t rows = q + 2 * kv;
    only_q = {{joined, rows, my_q}};
    only_kv = {{joined, rows, {q + my_kv.begin, my_kv.size}},
               {joined, rows, {q + kv + my_kv.begin, my_kv.size}}};
  } else {
    only_q = {{"self_attn.q_proj", q, my_q}};
  }
  std::vector<Split> all = only_q;
  all.insert(all.end(), only_kv.begin(), only_kv.end());
  all.insert(all.end(), gates.begin(), gates.end());
  std::vector<Split> no_kv = only_q;
  no_kv.insert(no_kv.end(), gates.begin(), gates.end());
  const bool shares = SharesKvHeads(config, tp.group->size());
  const auto holders =
      shares ? parallel::TpHolders{split.kv_holder, split.kv_holders, true} : parallel::TpHolders{};
  if (shares) {
    qkv.weight = declare.Rows("q.weight", ".weight", no_kv, hidden);
    qkv.kv_weight = declare.Rows("kv.weight", ".weight", only_kv, hidden, holders);
    if (config.attention_bias) {
      qkv.bias = declare.Rows("q.bias", ".bias", no_kv, 0);
      qkv.kv_bias = declare.Rows("kv.bias", ".bias", only_kv, 0, holders);
    }
  } else {
    qkv.weight = declare.Rows("qkv.weight", ".weight", all, hidden);
    if (config.attention_bias) qkv.bias = declare.Rows("qkv.bias", ".bias", all, 0);
  }
  if (attention->qk_norm == QkNorm::kFullWidth) {
    attention->q_norm =
        declare.Rows("q_norm.weight", ".weight", {{"self_attn.q_norm", q, my_q}}, 0);
    attention->k_norm =
        declare.Rows("k_norm.weight", ".weight", {{"self_attn.k_norm", kv, my_kv}}, 0, holders);
  } else if (attention->qk_norm != QkNorm::kNone) {
    // Each TP rank normalises its own heads, so these gradients are always summed.
    attention->q_norm = declare.Whole("self_attn.q_norm.weight", {d}, true);
    attention->k_norm = declare.Whole("self_attn.k_norm.weight", {d}, true);
  }
  for (Parameter* const norm : {attention->q_norm, attention->k_norm})
    if (norm != nullptr) norm->init_value = one;
  return qkv;
}

// The parameters of an attention whose other members are set.
void DeclareAttention(BlockParameters& declare, const HfConfig& config, const LayerSpec& spec,
                      const HeadSplit& split, const parallel::TensorParallel& tp, double one,
                      AttentionLayer* attention) {
  if (config.latent.used()) {
    attention->projection = DeclareLatent(declare, config, attention->shape, split.heads);
  } else {
    attention->projection = DeclareQkv(declare, config, split, tp, one, attention);
  }
  if (spec.sinks) {
    attention->scores.sinks = declare.Rows(
        "sinks", "", {{"self_attn.sinks", config.num_attention_heads, split.heads}}, 0);
    attention->scores.sinks->init_stddev = config.initializer_range;
  }
  const int64_t d = config.latent.used() ? config.latent.value_dims : config.head_dim;
  attention->output = declare.Columns("self_attn.o_proj.weight", {"self_attn.o_proj.weight"},
                                      config.num_attention_heads * d,
                                      {split.heads.begin * d, split.heads.size * d});
  // Added after the sum over TP, so every rank holds all of it.
  if (config.output_bias)
    attention->output_bias =
        declare.Whole("self_attn.o_proj.bias", {config.hidden_size}, tp.sequence_parallel);
}

// Of the mixer by the delta rule. `mine`: key heads, with which go their value heads.
DeltaMixer DeclareDelta(BlockParameters& declare, const HfConfig& config, const Span& mine) {
  const DeltaSpec& delta = config.delta;
  const int64_t hidden = config.hidden_size;
  const int64_t each = delta.per_key();
  const int64_t keys = delta.keys();
  const int64_t channels = 2 * keys + delta.values();
  const Span my_keys = {mine.begin * delta.key_dim, mine.size * delta.key_dim};
  const Span my_heads = {mine.begin * each, mine.size * each};
  const Span my_values = {my_heads.begin * delta.value_dim, my_heads.size * delta.value_dim};
  DeltaMixer mixer;
  mixer.shape = {mine.size, my_heads.size, delta.key_dim, delta.value_dim, delta.taps};
  mixer.norm = {config.rms_norm_eps, 0};

  // q, k and v of a tensor that has one behind the other.
  const auto thirds = [&](const char* name) -> std::vector<Split> {
    return {{name, channels, my_keys},
            {name, channels, {keys + my_keys.begin, my_keys.size}},
            {name, channels, {2 * keys + my_values.begin, my_values.size}}};
  };
  std::vector<Split> input;
  if (delta.by_key_head) {
    // Of each key head its q, k, values and gates, and its b and a.
    const int64_t group = each * delta.value_dim;
    const int64_t stride = 2 * delta.key_dim + 2 * group;
    const auto of_heads = [&](const char* name, int64_t rows, int64_t by, const Span& part) {
      for (int64_t head = mine.begin; head < mine.end(); ++head)
        input.push_back({name, rows, {head * by + part.begin, part.size}});
    };
    const char* const qkvz = "linear_attn.in_proj_qkvz";
    const int64_t rows = channels + delta.values();
    of_heads(qkvz, rows, stride, {0, delta.key_dim});
    of_heads(qkvz, rows, stride, {delta.key_dim, delta.key_dim});
    of_heads(qkvz, rows, stride, {2 * delta.key_dim, group});
    of_heads(qkvz, rows, stride, {2 * delta.key_dim + group, group});
    for (const int64_t part : {int64_t{0}, each})
      of_heads("linear_attn.in_proj_ba", 2 * delta.value_heads, 2 * each, {part, each});
  } else {
    input = thirds("linear_attn.in_proj_qkv");
    input.push_back({"linear_attn.in_proj_z", delta.values(), my_values});
    input.push_back({"linear_attn.in_proj_b", delta.value_heads, my_heads});
    input.push_back({"linear_attn.in_proj_a", delta.value_heads, my_heads});
  }
  mixer.input = declare.Rows("delta.input.weight", ".weight", input, hidden);
  mixer.convolution =
      declare.Taps("delta.conv.weight", thirds("linear_attn.conv1d.weight"), delta.taps);
  const auto by_head = [&](const char* storage, const char* name) {
    return declare.Rows(storage, "", {{name, delta.value_heads, my_heads}}, 0);
  };
  mixer.gates.a_log = by_head("delta.a_log", "linear_attn.A_log");
  mixer.gates.a_log->init_log_below = 16;
  mixer.gates.dt_bias = by_head("delta.dt_bias", "linear_attn.dt_bias");
  mixer.gates.dt_bias->init_value = 1;
  mixer.value_norm = declare.Whole("linear_attn.norm.weight", {delta.value_dim}, true);
  mixer.value_norm->init_value = 1;
  mixer.output = declare.Columns("delta.output.weight", {"linear_attn.out_proj.weight"},
                                 delta.values(), my_values);
  return mixer;
}

}  // namespace

void Decoder::DeclareAdapter(Parameter& weight, std::vector<Parameter*>* block) {
  std::optional<AdapterParameters> made = AdapterOf(config_, weight);
  if (!made) return;
  parallel::Adapter adapter;
  adapter.a = Declare(std::move(made->a), Learns::kAlways);
  adapter.b = Declare(std::move(made->b), Learns::kAlways);
  adapter.rank = config_.adapter.rank;
  adapter.scale = config_.adapter.scale();
  adapter.runs = std::move(made->runs);
  weight.adapter = std::move(adapter);
  block->insert(block->end(), {weight.adapter->a, weight.adapter->b});
}

void Decoder::DeclareBlock(int layer) {
  const int64_t hidden = config_.hidden_size;
  const int64_t d = config_.head_dim;
  const LayerSpec spec = config_.Layer(layer);
  Block block;
  block.residual_scale = spec.residual_scale;
  block.parallel = spec.parallel;
  const Norm empty = NormOf(spec);
  const double one = 1 - empty.options.offset;  // the weight of a norm that changes nothing
  BlockParameters declare(config_, layer, [this, &block](Parameter p) {
    Parameter* const declared = Declare(std::move(p));
    if (declared->trained()) block.all.push_back(declared);
    if (config_.adapter.used()) DeclareAdapter(*declared, &block.all);
    return declared;
  });
  const bool sp = tp_.sequence_parallel;
  const auto norm = [&](std::string_view name) {
    Norm made = empty;
    made.weight = declare.Whole(fmt::format("{}.weight", name), {hidden}, sp);
    made.weight->init_value = one;
    if (spec.norm_bias) made.bias = declare.Whole(fmt::format("{}.bias", name), {hidden}, sp);
    return made;
  };

  // In the order in which the forward uses them.
  if (spec.norm_in()) block.attention_in_norm = norm("input_layernorm");
  if (spec.mixer == Mixer::kDeltaRule) {
    block.mixer = DeclareDelta(declare, config_, split_.delta);
  } else {
    AttentionLayer attention;
    attention.qk_norm = spec.qk_norm;
    attention.width = {tp_.group, config_.num_attention_heads * d, config_.num_key_value_heads * d,
                       split_.kv_holder == 0, empty.options};
    attention.shape = attention_;
    attention.rope = spec.rope;
    attention.scores = {spec.window, spec.score_scale, spec.score_softcap, nullptr};
    DeclareAttention(declare, config_, spec, split_, tp_, one, &attention);
    block.mixer = attention;
  }
  if (spec.norm_out()) block.attention_out_norm = norm(spec.norm_names.attention_out);
  if (spec.norm_of_ffn()) block.ffn_in_norm = norm(spec.ffn_in_norm());
  switch (spec.ffn) {
    case FfnKind::kMoe:
      block.feed_forward = DeclareExperts(declare, config_, spec, split_);
      break;
    case FfnKind::kPlain:
      block.feed_forward = DeclarePlain(declare, config_, spec, split_.ffn, sp);
      break;
    case FfnKind::kDense:
      block.feed_forward = DeclareGated(declare, config_, spec, split_.ffn, sp);
      break;
  }
  if (spec.norm_out()) block.ffn_out_norm = norm(spec.norm_names.ffn_out);
  blocks_.push_back(std::move(block));
}

}  // namespace keel::model
