// The family of OPT.

#include <fmt/format.h>

#include <algorithm>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

constexpr double kEps = 1e-5;  // which no key says

constexpr KeyName kOptKeys[] = {{"dropout", "residual_dropout"}, {"init_std", "initializer_range"}};

void ReadOpt(ConfigReader& reader, HfConfig& config) {
  config.attention_bias = config.output_bias = config.mlp_bias = reader.Bool("enable_bias", true);
  const auto must_be = [&](const char* key, bool value, const char* why) {
    if (reader.Bool(key, value) != value)
      reader.Problem(fmt::format("{}: expected {}: {}", key, value, why));
  };
  must_be("do_layer_norm_before", true, "norms behind what is added are not computed (OPT 350M)");
  must_be("layer_norm_elementwise_affine", true, "norms without weights are not computed");
  must_be("_remove_final_layer_norm", false, "a model without its last norm is not computed");
  const int64_t embedded = reader.Positive("word_embed_proj_dim", config.hidden_size, kMostHidden);
  if (embedded != config.hidden_size) {
    reader.Problem(fmt::format(
        "word_embed_proj_dim: {} is not hidden_size {}: embeddings of another size are not "
        "computed (OPT 350M)",
        embedded, config.hidden_size));
  }
  if (config.rms_norm_eps != kEps)
    reader.Problem(fmt::format("layer_norm_eps: expected {}, which model_type opt has", kEps));
  config.other_dropout = std::max(config.other_dropout, reader.Within(0, 1, "layerdrop", 0));
  RefuseFewerKeyHeads(reader, config);
  RefuseRotation(reader, config);
}

void WriteOpt(const HfConfig& config, Json& json) {
  EraseHeadKeys(json);
  json.erase("layer_norm_eps");
  json["residual_dropout"] = config.residual_dropout;
  json["enable_bias"] = config.attention_bias;
  json["do_layer_norm_before"] = true;
  json["word_embed_proj_dim"] = config.hidden_size;
}

}  // namespace

// Zhang et al. 2022: norms by mean and variance before attention and feed-forward, biases on all
// matrices or none, a feed-forward of ReLUs. The table of positions begins with two rows that no
// token has.
constinit const FamilyTable kOptFamily = {
    .family = Family::kOpt,
    .model_type = "opt",
    .model_class = "OPTForCausalLM",
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .rope = RopeChoice::kNone,
              .ffn = FfnKind::kPlain},
    .first_position = 2,
    .keys = kOptKeys,
    .tied = true,
    .eps_key = "layer_norm_eps",
    .eps = kEps,
    .width_key = "ffn_dim",
    .width = 3072,
    .activation_key = "activation_function",
    .activation = "relu",
    .read = ReadOpt,
    .write = WriteOpt,
};

}  // namespace keel::model
