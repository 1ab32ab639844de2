// The family of Seed-OSS.

#include "model/config/family_table.h"

namespace keel::model {

// ByteDance Seed 2025: Llama's block with biases on q, k and v, or on the output, or on all.
constinit const FamilyTable kSeedOssFamily = {
    .family = Family::kSeedOss,
    .model_type = "seed_oss",
    .model_class = "SeedOssForCausalLM",
    .positions = 524'288,
    .head_dim = 128,
    .kv_heads = 8,
    .dropout = 0.1,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = reader.Bool("attention_bias", true);
          config.output_bias = reader.Bool("attention_out_bias", false);
          ReadMlpBias(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["attention_bias"] = config.attention_bias;
          json["attention_out_bias"] = config.output_bias;
          WriteMlpBias(config, json);
          json["residual_dropout"] = config.residual_dropout;
        },
};

}  // namespace keel::model
