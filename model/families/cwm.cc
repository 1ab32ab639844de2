// The family of Meta's Code World Model.

#include "model/config/family_table.h"

namespace keel::model {

// Meta FAIR 2025: Llama's block; three layers of four have the window.
constinit const FamilyTable kCwmFamily = {
    .family = Family::kCwm,
    .model_type = "cwm",
    .model_class = "CwmForCausalLM",
    .positions = 131'072,
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 1e6,
    .kv_heads = 8,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadNeededRope(reader, config);
          const bool none =
              reader.json().contains("sliding_window") && reader.Find("sliding_window") == nullptr;
          if (none && reader.Find("layer_types") == nullptr)
            reader.Missing("layer_types", "full_attention for each layer, as there is no window");
          constexpr int64_t kWholeEvery = 4;
          constexpr int64_t kWindow = 8192;
          ReadWindows(
              reader, config, [](int64_t layer) { return layer % kWholeEvery != 0; }, kWindow);
          ReadMlpBias(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteNeededRope(config, json);
          WriteWindows(config, json);
          WriteMlpBias(config, json);
        },
};

}  // namespace keel::model
