// The family of Jais 2.

#include "model/config/family_table.h"

namespace keel::model {

// Inception and MBZUAI 2025: Llama's attention, norms by mean and variance, a feed-forward without
// a gate, and biases on all matrices.
constinit const FamilyTable kJais2Family = {
    .family = Family::kJais2,
    .model_type = "jais2",
    .model_class = "Jais2ForCausalLM",
    .positions = 8'192,
    .block = {.norm_kind = NormKind::kLayer, .norm_bias = true, .ffn = FfnKind::kPlain},
    .eps_key = "layer_norm_eps",
    .eps = 1e-5,
    .activation = "relu2",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = config.output_bias = reader.Bool("attention_bias", true);
          config.mlp_bias = reader.Bool("mlp_bias", true);
        },
    .write = WriteRopeAndBiases,
};

}  // namespace keel::model
