#include "model/config/hf_tensors.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// A layer's router and clamped experts, which stand together.
void AddClampedExperts(const HfConfig& config, const MoeSpec& moe, const std::string& block,
                       ModelTensors* model) {
  const MoeNames& names = FamilyOf(config.family).moe_names;
  const int64_t hidden = config.hidden_size;
  const auto add = [&](const char* part, const char* name, const Dims& shape) {
    model->needed.push_back({fmt::format("{}{}.{}", block, part, name), DType::kF32, shape});
  };
  add(names.router, "weight", {moe.experts, hidden});
  add(names.router, "bias", {moe.experts});
  add(names.experts, "gate_up_proj", {moe.experts, hidden, 2 * moe.width});
  add(names.experts, "gate_up_proj_bias", {moe.experts, 2 * moe.width});
  add(names.experts, "down_proj", {moe.experts, moe.width, hidden});
  add(names.experts, "down_proj_bias", {moe.experts, hidden});
}

// A layer's router and experts, each expert by itself. What transformers 5 writes when it is told
// not to keep a model's own format is the layer's experts in two tensors, whatever the family.
void AddExperts(const HfConfig& config, const MoeSpec& moe, const std::string& block,
                ModelTensors* model) {
  if (moe.kind == ExpertKind::kClamped) return AddClampedExperts(config, moe, block, model);
  const MoeNames& names = FamilyOf(config.family).moe_names;
  const int64_t hidden = config.hidden_size;
  const auto add = [&](std::string name, const Dims& shape) {
    model->needed.push_back({std::move(name), DType::kF32, shape});
    return model->needed.back().name;
  };
  ModelTensors::Stack router = {block + "mlp.gate.weight", {moe.experts, hidden}, {}};
  ModelTensors::Stack gate_up = {
      block + "mlp.experts.gate_up_proj", {moe.experts, 2 * moe.width, hidden}, {}};
  ModelTensors::Stack down = {
      block + "mlp.experts.down_proj", {moe.experts, hidden, moe.width}, {}};
  router.parts = {add(fmt::format("{}{}.weight", block, names.router), router.shape)};
  if (moe.choice_bias) {
    ModelTensors::Stack bias = {block + "mlp.e_score_correction_bias", {moe.experts}, {}};
    bias.parts = {add(block + names.choice_bias, bias.shape)};
    // Where it is the router's it is so there, too.
    if (std::string_view(names.choice_bias) != MoeNames().choice_bias)
      model->may_stack.push_back(std::move(bias));
  }
  for (int64_t e = 0; e < moe.experts; ++e) {
    const std::string expert = fmt::format("{}{}.{}.", block, names.experts, e);
    for (const char* half : {names.gate, names.up})
      gate_up.parts.push_back(add(fmt::format("{}{}.weight", expert, half), {moe.width, hidden}));
    down.parts.push_back(add(fmt::format("{}{}.weight", expert, names.down), {hidden, moe.width}));
  }
  if (moe.shared_width > 0) {
    const std::string shared = fmt::format("{}{}.", block, names.shared);
    for (const char* half : {names.gate, names.up})
      add(fmt::format("{}{}.weight", shared, half), {moe.shared_width, hidden});
    add(fmt::format("{}{}.weight", shared, names.down), {hidden, moe.shared_width});
    if (moe.shared_gated) add(fmt::format("{}{}.weight", block, names.shared_gate), {1, hidden});
  }
  if (router.parts[0] != router.name) model->may_stack.push_back(std::move(router));
  model->may_stack.push_back(std::move(gate_up));
  model->may_stack.push_back(std::move(down));
}

// As files have it.
Dims MatrixOf(const LayerSpec& spec, int64_t outputs, int64_t inputs) {
  return spec.input_rows ? Dims{inputs, outputs} : Dims{outputs, inputs};
}

// The weights of a layer's attention, but for its norms outside and its output's bias.
std::vector<std::pair<std::string, Dims>> AttentionTensors(const HfConfig& config,
                                                           const LayerSpec& spec) {
  std::vector<std::pair<std::string, Dims>> tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    tensors.emplace_back(name + ".weight", MatrixOf(spec, rows, columns));
    if (bias) tensors.emplace_back(name + ".bias", Dims{rows});
  };
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads;
  if (const LatentSpec& latent = config.latent; latent.used()) {
    if (latent.q_rank > 0) {
      add("q_a_proj", latent.q_rank, hidden, config.attention_bias);
      tensors.emplace_back("q_a_layernorm.weight", Dims{latent.q_rank});
      add("q_b_proj", heads * latent.key_dims(), latent.q_rank, false);
    } else {
      add("q_proj", heads * latent.key_dims(), hidden, false);
    }
    add("kv_a_proj_with_mqa", latent.kv_rank + latent.turned_dims, hidden, config.attention_bias);
    tensors.emplace_back("kv_a_layernorm.weight", Dims{latent.kv_rank});
    add("kv_b_proj", heads * latent.kv_dims(), latent.kv_rank, false);
    add("o_proj", hidden, heads * latent.value_dims, false);
    return tensors;
  }
  const int64_t q = heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  if (spec.qkv != QkvTensors::kApart) {
    add("query_key_value", q + 2 * kv, hidden, config.attention_bias);
  } else {
    add("q_proj", spec.gated ? 2 * q : q, hidden, config.attention_bias);
    add("k_proj", kv, hidden, config.attention_bias);
    add("v_proj", kv, hidden, config.attention_bias);
  }
  if (spec.qk_norm != QkNorm::kNone) {
    const bool per_head = spec.qk_norm != QkNorm::kFullWidth;
    tensors.emplace_back("q_norm.weight", Dims{per_head ? config.head_dim : q});
    tensors.emplace_back("k_norm.weight", Dims{per_head ? config.head_dim : kv});
  }
  if (spec.sinks) tensors.emplace_back("sinks", Dims{heads});
  add("o_proj", hidden, q, false);
  return tensors;
}

// The weights of a layer's mixer by the delta rule.
std::vector<std::pair<std::string, Dims>> DeltaTensors(const HfConfig& config) {
  const DeltaSpec& delta = config.delta;
  const int64_t hidden = config.hidden_size;
  const int64_t channels = 2 * delta.keys() + delta.values();
  std::vector<std::pair<std::string, Dims>> tensors;
  if (delta.by_key_head) {
    tensors = {{"in_proj_qkvz.weight", {channels + delta.values(), hidden}},
               {"in_proj_ba.weight", {2 * delta.value_heads, hidden}}};
  } else {
    tensors = {{"in_proj_qkv.weight", {channels, hidden}},
               {"in_proj_z.weight", {delta.values(), hidden}},
               {"in_proj_b.weight", {delta.value_heads, hidden}},
               {"in_proj_a.weight", {delta.value_heads, hidden}}};
  }
  tensors.insert(tensors.end(), {{"conv1d.weight", {channels, 1, delta.taps}},
                                 {"A_log", {delta.value_heads}},
                                 {"dt_bias", {delta.value_heads}},
                                 {"norm.weight", {delta.value_dim}},
                                 {"out_proj.weight", {hidden, delta.values()}}});
  return tensors;
}

}  // namespace

ModelTensors TensorsOf(const HfConfig& config, Head head) {
  ModelTensors model;
  const auto add = [&](std::string name, const Dims& shape) {
    model.needed.push_back({std::move(name), DType::kF32, shape});
  };
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.intermediate_size;
  const Dims vocabulary = {config.vocab_size, hidden};
  add("model.embed_tokens.weight", vocabulary);
  if (const LearnedPositions positions = config.learned_positions(); positions.rows > 0)
    add("model.embed_positions.weight", {positions.rows, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerSpec spec = config.Layer(layer);
    const std::string block = fmt::format("model.layers.{}.", layer);
    const std::string attention = block + "self_attn.";
    const auto add_norm = [&](std::string_view name) {
      add(fmt::format("{}{}.weight", block, name), {hidden});
      if (spec.norm_bias) add(fmt::format("{}{}.bias", block, name), {hidden});
    };
    if (spec.norm_in()) add_norm("input_layernorm");
    if (spec.mixer == Mixer::kDeltaRule) {
      for (const auto& [name, shape] : DeltaTensors(config))
        add(fmt::format("{}linear_attn.{}", block, name), shape);
    } else {
      for (const auto& [name, shape] : AttentionTensors(config, spec)) add(attention + name, shape);
      if (config.output_bias) add(attention + "o_proj.bias", {hidden});
    }
    if (spec.norm_out()) add_norm(spec.norm_names.attention_out);
    if (spec.norm_of_ffn()) add_norm(spec.ffn_in_norm());
    if (spec.ffn == FfnKind::kMoe) {
      AddExperts(config, spec.moe, block, &model);
    } else {
      const auto add_rows = [&](const char* name, int64_t rows, int64_t columns) {
        add(fmt::format("{}mlp.{}.weight", block, name), MatrixOf(spec, rows, columns));
        if (config.mlp_bias) add(fmt::format("{}mlp.{}.bias", block, name), {rows});
      };
      if (spec.ffn == FfnKind::kDense) add_rows("gate_proj", ffn, hidden);
      add_rows("up_proj", ffn, hidden);
      add_rows("down_proj", hidden, ffn);
    }
    if (spec.norm_out()) add_norm(spec.norm_names.ffn_out);
  }
  add("model.norm.weight", {hidden});
  if (config.Layer(0).norm_bias) add("model.norm.bias", {hidden});
  if (head == Head::kValue) {
    add("score.weight", {1, hidden});
    model.may_lack = {"score.weight"};
    model.may_add = {"lm_head.weight"};
    if (config.head_bias()) model.may_add.emplace_back("lm_head.bias");
  } else if (config.tie_word_embeddings) {
    model.may_copy = {{"lm_head.weight", "model.embed_tokens.weight"}};
  } else {
    add("lm_head.weight", vocabulary);
  }
  if (config.head_bias() && head == Head::kVocabulary) add("lm_head.bias", {config.vocab_size});
  for (int64_t extra = 0; extra < config.extra_layers; ++extra)
    model.may_add.push_back(fmt::format("model.layers.{}.*", config.num_hidden_layers + extra));
  // Layers that predict further tokens, which transformers leaves out, too.
  if (config.delta.key_heads > 0) model.may_add.emplace_back("mtp.*");
  if (FamilyOf(config.family).keeps_masks) {
    for (const char* attention : {"attention", "attn"})
      for (const char* mask : {"bias", "masked_bias"})
        model.may_add.push_back(fmt::format("*.{}.{}", attention, mask));
  }
  // Older directories hold the frequencies that follow from rope_theta.
  model.may_add.emplace_back("*.rotary_emb.inv_freq");
  return model;
}

bool IsConstant(const HfConfig& config, std::string_view tensor) {
  return config.moe.choice_bias &&
         tensor.ends_with(fmt::format(".{}", FamilyOf(config.family).moe_names.choice_bias));
}

}  // namespace keel::model
