// The family of Nemotron-4 and Minitron.

#include "model/config/family_table.h"

namespace keel::model {

// NVIDIA 2024: Llama's attention, of which half of each head turns, norms by mean and variance that
// multiply by 1 + weight, and a feed-forward without a gate (So et al. 2021).
constinit const FamilyTable kNemotronFamily = {
    .family = Family::kNemotron,
    .model_type = "nemotron",
    .model_class = "NemotronForCausalLM",
    .positions = 4'096,
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .norm_plus_one = true,
              .ffn = FfnKind::kPlain},
    .eps_key = "norm_eps",
    .eps = 1e-5,
    .rotated = 0.5,
    .activation = "relu2",
    .read = ReadRopeAndBiases,
    .write = WriteRopeAndBiases,
};

}  // namespace keel::model
