// The family of Hunyuan's dense models.

#include <cmath>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// A rotation "dynamic" with an alpha stretches the base by it, whatever a text's length is.
void ReadAlpha(ConfigReader& reader, HfConfig& config) {
  const Json* map = reader.Find("rope_parameters");
  if (map == nullptr) map = reader.Find("rope_scaling");
  if (config.rope.type != RopeType::kDynamic || map == nullptr || !map->is_object()) return;
  const auto alpha = map->find("alpha");
  // transformers takes 0 for none, too.
  if (alpha == map->end() || alpha->is_null() || *alpha == 0) return;
  if (!alpha->is_number() || !(alpha->get<double>() >= 1e-6 && alpha->get<double>() <= 1e9)) {
    reader.Wrong("rope_scaling: alpha", "a number from 1e-6 to 1e9", *alpha);
    return;
  }
  const auto dims = static_cast<double>(config.head_dim);  // more than two, of this type
  RopeSpec plain;
  plain.theta = config.rope.theta * std::pow(alpha->get<double>(), dims / (dims - 2));
  if (!(plain.theta >= 1 && plain.theta <= 1e30)) {
    reader.Wrong("rope_scaling: alpha", "one that stretches the base to 1 to 1e30", *alpha);
    return;
  }
  config.rope = plain;
}

}  // namespace

// Tencent 2025; Hunyuan-0.5B to -7B: Llama's block with a norm of each head of q and k behind their
// rotation.
constinit const FamilyTable kHunyuanFamily = {
    .family = Family::kHunyuan,
    .model_type = "hunyuan_v1_dense",
    .model_class = "HunYuanDenseV1ForCausalLM",
    .block = {.qk_norm = QkNorm::kPerTurnedHead},
    .eps = 1e-5,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadRopeAndBias(reader, config);
          ReadAlpha(reader, config);
        },
    .write = WriteRopeAndBias,
};

}  // namespace keel::model
