// The family of GPT-NeoX and Pythia.

#include <fmt/format.h>

#include "model/config/family_table.h"
#include "model/config/rope_config.h"

namespace keel::model {

namespace {

// Whose rotation has two keys of its own names.
void ReadNeoxRope(ConfigReader& reader, HfConfig& config) {
  const double theta = reader.Within(1, 1e30, "rotary_emb_base", 10'000);
  const double rotated = reader.Within(0, 1, "rotary_pct", 0.25);
  if (reader.Find("rope_theta") != nullptr && reader.Number("rope_theta", theta) != theta) {
    reader.Problem(
        fmt::format("rope_theta: expected rotary_emb_base ({}), which is what "
                    "model_type gpt_neox reads",
                    theta));
  }
  // transformers does not look at it outside the map of version 5.
  if (reader.Find("partial_rotary_factor") != nullptr &&
      reader.Number("partial_rotary_factor", rotated) != rotated) {
    reader.Problem(
        fmt::format("partial_rotary_factor: expected rotary_pct ({}), which is what "
                    "model_type gpt_neox reads",
                    rotated));
  }
  config.rope = ReadRope(reader, {.head_dim = config.head_dim,
                                  .max_positions = PositionsSaid(reader, config),
                                  .theta = theta,
                                  .partial = true,
                                  .rotated = rotated});
}

void ReadNeox(ConfigReader& reader, HfConfig& config) {
  ReadNeoxRope(reader, config);
  config.attention_bias = config.output_bias = reader.Bool("attention_bias", true);
  config.mlp_bias = true;
  config.parallel_residual = reader.Bool("use_parallel_residual", true);
  reader.Find("classifier_dropout");  // of another head
  RefuseFewerKeyHeads(reader, config);
}

void WriteNeox(const HfConfig& config, Json& json) {
  EraseHeadKeys(json);
  json["rotary_emb_base"] = WholeNumber(config.rope.theta);
  json["rotary_pct"] = config.rope.rotated;
  json["rope_scaling"] = RopeScalingJson(config.rope);
  json["attention_bias"] = config.attention_bias;
  json["use_parallel_residual"] = config.parallel_residual;
}

}  // namespace

// Black et al. 2022, Biderman et al. 2023: attention and feed-forward read the same stream, each
// behind a norm of its own by mean and variance; a part of each head turns; a feed-forward without
// a gate. Files have other names (common/tensors/renamed_tensors.h), and q, k and v of each head
// together.
constinit const FamilyTable kGptNeoxFamily = {
    .family = Family::kGptNeox,
    .model_type = "gpt_neox",
    .model_class = "GPTNeoXForCausalLM",
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .qkv = QkvTensors::kByHead,
              .ffn = FfnKind::kPlain},
    .keeps_masks = true,
    .eps_key = "layer_norm_eps",
    .eps = 1e-5,
    .rotated = 0.25,
    .activation = "gelu",
    .read = ReadNeox,
    .write = WriteNeox,
};

}  // namespace keel::model
