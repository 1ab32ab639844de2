// The family of Granite.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// A factor of 0 would leave nothing of what it multiplies, or divide by it.
double ReadFactor(ConfigReader& reader, std::string_view key) {
  return reader.Within(1e-9, 1e9, key, 1);
}

}  // namespace

// IBM Granite 3 and 4.1 (those of 4.0 are of another type): Llama's block with factors in four
// places (as maximal update parametrization has them; Yang et al. 2022), whose scores are not
// divided by the root of a head's size.
constinit const FamilyTable kGraniteFamily = {
    .family = Family::kGranite,
    .model_type = "granite",
    .model_class = "GraniteForCausalLM",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadRopeAndBiases(reader, config);
          config.embedding_multiplier = ReadFactor(reader, "embedding_multiplier");
          config.attention_multiplier = ReadFactor(reader, "attention_multiplier");
          config.residual_multiplier = ReadFactor(reader, "residual_multiplier");
          config.logits_scaling = ReadFactor(reader, "logits_scaling");
          config.attention_dropout = ReadDropout(reader, "attention_dropout", 0);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteRopeAndBiases(config, json);
          json["embedding_multiplier"] = config.embedding_multiplier;
          json["attention_multiplier"] = config.attention_multiplier;
          json["residual_multiplier"] = config.residual_multiplier;
          json["logits_scaling"] = config.logits_scaling;
        },
};

}  // namespace keel::model
