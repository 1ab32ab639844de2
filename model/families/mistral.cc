// The family of Mistral.

#include "model/config/family_table.h"

namespace keel::model {

// Jiang et al. 2023: Llama's block, of which every layer has the window, where there is one.
constinit const FamilyTable kMistralFamily = {
    .family = Family::kMistral,
    .model_type = "mistral",
    .model_class = "MistralForCausalLM",
    .names_kv_heads = true,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          if (!reader.json().contains("sliding_window"))
            reader.Missing("sliding_window", "a number, or null for none");
          ReadOneWindow(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteOneWindow(config, json);
        },
};

}  // namespace keel::model
