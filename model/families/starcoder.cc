// The family of StarCoder 2.

#include <fmt/format.h>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

void ReadStarcoder(ConfigReader& reader, HfConfig& config) {
  ReadMainRope(reader, config);
  ReadOneWindow(reader, config);
  config.attention_bias = config.output_bias = config.mlp_bias = reader.Bool("use_bias", true);
  // Published files say what every model of the type has.
  for (const auto& [key, only] :
       {std::pair("norm_type", "layer_norm"), std::pair("mlp_type", "default")}) {
    if (const std::string said = reader.String(key, only); said != only)
      reader.Wrong(key, only, said);
  }
  for (const char* key : {"activation_function", "layer_norm_epsilon"}) reader.Find(key);
}

}  // namespace

// Lozhkov et al. 2024: Llama's attention, norms by mean and variance, and a feed-forward without a
// gate, whose matrices have other names in files (common/tensors/renamed_tensors.h).
constinit const FamilyTable kStarcoder2Family = {
    .family = Family::kStarcoder2,
    .model_type = "starcoder2",
    .model_class = "Starcoder2ForCausalLM",
    .positions = 4'096,
    .block = {.norm_kind = NormKind::kLayer, .norm_bias = true, .ffn = FfnKind::kPlain},
    .tied = true,
    .eps_key = "norm_epsilon",
    .eps = 1e-5,
    .kv_heads = 2,
    .activation = "gelu_pytorch_tanh",
    .read = ReadStarcoder,
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteOneWindow(config, json);
          json["use_bias"] = config.mlp_bias;
        },
};

}  // namespace keel::model
