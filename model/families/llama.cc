// The family of Llama, from whose block the others differ.

#include "model/config/family_table.h"

namespace keel::model {

// Touvron et al. 2023; Llama 2 and 3, SmolLM2 and all that took their block.
constinit const FamilyTable kLlamaFamily = {
    .family = Family::kLlama,
    .model_type = "llama",
    .model_class = "LlamaForCausalLM",
    .text_defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        "bos_token_id": 1, "eos_token_id": 2})",
    .read = ReadRopeAndBiases,
    .write = WriteRopeAndBiases,
};

}  // namespace keel::model
