// The family of Llama, from whose block the others differ.

#include "model/config/family_table.h"

namespace keel::model {

// Touvron et al. 2023; Llama 2 and 3, SmolLM2 and all that took their block.
constinit const FamilyTable kLlamaFamily = {
    .family = Family::kLlama,
    .model_type = "llama",
    .model_class = "LlamaForCausalLM",
    .read = ReadRopeAndBias,
    .write = WriteRopeAndBias,
};

}  // namespace keel::model
