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

// Mistral AI 2025: Ministral 3, whose queries are multiplied by a factor of their position (as
// those of Llama 4), so that a text beyond the original context is seen as sharply as one within
// it.
constinit const FamilyTable kMinistral3Family = {
    .family = Family::kMinistral3,
    .model_type = "ministral3",
    .model_class = "Ministral3ForCausalLM",
    .positions = 262'144,
    .head_dim = 128,
    .eps = 1e-5,
    .kv_heads = 8,
    .scaled_queries = true,
    .text_defaults = R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 34, "num_attention_heads": 32, "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
                            "original_max_position_embeddings": 16384, "mscale": 1.0,
                            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}})",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          TakeHeadDimOfNull(reader, config);
          ReadNeededRope(reader, config);
          ReadOneWindow(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteNeededRope(config, json);
          WriteOneWindow(config, json);
        },
};

}  // namespace keel::model
