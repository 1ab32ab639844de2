// The family of InternLM3.

#include <fmt/format.h>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// One switch in two spellings, of the published files and of transformers.
bool ReadBias(ConfigReader& reader, std::string_view published, std::string_view key) {
  const Json* const said = reader.Find(published);
  const Json* const again = reader.Find(key);
  if (said != nullptr && again != nullptr && *said != *again) {
    reader.Problem(fmt::format("{} is {} and {} {}: leave one out", published, Shown(*said), key,
                               Shown(*again)));
  }
  return reader.Bool(said != nullptr ? published : key, false);
}

}  // namespace

// Cai et al. 2024 and 2025: Llama's block.
constinit const FamilyTable kInternLm3Family = {
    .family = Family::kInternLm3,
    .model_type = "internlm3",
    .model_class = "InternLM3ForCausalLM",
    .positions = 32'768,
    .head_dim = 128,
    .eps = 1e-5,
    .kv_heads = 2,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          TakeHeadDimOfNull(reader, config);
          ReadMainRope(reader, config);
          const bool bias = ReadBias(reader, "qkv_bias", "attention_bias");
          config.attention_bias = config.output_bias = config.mlp_bias =
              ReadBias(reader, "bias", "mlp_bias");
          if (bias != config.mlp_bias) {
            reader.Problem(fmt::format("qkv_bias is {} and bias {}, expected the same", bias,
                                       config.mlp_bias));
          }
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          for (const char* again : {"attention_bias", "mlp_bias"}) json.erase(again);
          json["qkv_bias"] = json["bias"] = config.mlp_bias;
        },
};

}  // namespace keel::model
