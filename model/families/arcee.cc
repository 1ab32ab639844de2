// The family of Arcee's foundation models.

#include "model/config/family_table.h"

namespace keel::model {

// Arcee AI 2025, AFM: Llama's block, whose feed-forward has no gate (as Nemotron's; So et al.
// 2021).
constinit const FamilyTable kArceeFamily = {
    .family = Family::kArcee,
    .model_type = "arcee",
    .model_class = "ArceeForCausalLM",
    .positions = 4'096,
    .block = {.ffn = FfnKind::kPlain},
    .eps = 1e-5,
    .activation = "relu2",
    .read = ReadRopeAndBiases,
    .write = WriteRopeAndBiases,
};

}  // namespace keel::model
