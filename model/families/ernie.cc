// The family of ERNIE 4.5's dense models.

#include "model/config/family_table.h"

namespace keel::model {

// Baidu 2025: Llama's block, of which each dim turns with its neighbour; one key for the biases of
// all matrices.
constinit const FamilyTable kErnie45Family = {
    .family = Family::kErnie45,
    .model_type = "ernie4_5",
    .model_class = "Ernie4_5ForCausalLM",
    .positions = 131'072,
    .tied = true,
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 500000,
    .kv_heads = 2,
    .interleaved = true,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          TakeHeadDimOfNull(reader, config);
          ReadMainRope(reader, config);
          config.attention_bias = config.output_bias = config.mlp_bias =
              reader.Bool("use_bias", false);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["use_bias"] = config.mlp_bias;
        },
};

}  // namespace keel::model
