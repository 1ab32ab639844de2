// The families of Mistral.

#include "model/config/family_table.h"

namespace keel::model {

// Jiang et al. 2023: Llama's block, of which every layer has the window, where there is one.
constinit const FamilyTable kMistralFamily = {
    .family = Family::kMistral,
    .model_type = "mistral",
    .model_class = "MistralForCausalLM",
    .positions = 131'072,
    .kv_heads = 8,
    .text_defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 131072,
        "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2})",
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

// Ministral-8B as transformers 5 has it: layers may differ in their window.
constinit const FamilyTable kMinistralFamily = {
    .family = Family::kMinistral,
    .model_type = "ministral",
    .model_class = "MinistralForCausalLM",
    .positions = 131'072,
    .kv_heads = 8,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadWindows(
              reader, config, [](int64_t) { return true; }, kUsualWindow);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteWindows(config, json);
        },
};

}  // namespace keel::model
