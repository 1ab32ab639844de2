// The family of Helium.

#include "model/config/family_table.h"

namespace keel::model {

// Kyutai 2025: Llama's block, whose heads turn each dim with its neighbour.
constinit const FamilyTable kHeliumFamily = {
    .family = Family::kHelium,
    .model_type = "helium",
    .model_class = "HeliumForCausalLM",
    .positions = 4'096,
    .head_dim = 128,
    .eps = 1e-8,
    .theta = 100'000,
    .kv_heads = 20,
    .interleaved = true,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = reader.Bool("attention_bias", false);  // of q, k and v
          ReadMlpBias(reader, config);
          RefuseOtherHeadDim(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["attention_bias"] = config.attention_bias;
          WriteMlpBias(config, json);
        },
};

}  // namespace keel::model
