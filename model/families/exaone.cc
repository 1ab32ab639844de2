// The family of EXAONE 4.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// Where the file names a window, layers that do not have it are not turned, even if none has it.
void ReadExaoneWindows(ConfigReader& reader, HfConfig& config) {
  constexpr const char* kPattern = "sliding_window_pattern";
  if (!reader.json().contains("sliding_window"))
    reader.Missing("sliding_window", "a number, or null for none");
  const bool window = reader.Find("sliding_window") != nullptr;
  // Which layers have it: transformers divides by the pattern, and writes 0 without a window.
  const Json* pattern = reader.Find(kPattern);
  const bool divides = window && (pattern != nullptr ? pattern->is_number() && *pattern != 0
                                                     : !reader.json().contains(kPattern));
  const int64_t every = divides ? reader.Positive(kPattern, 4, kMostLayers) : 1;
  if (reader.Find("layer_types") == nullptr && !divides) {
    reader.Missing("layer_types",
                   "a list of names, where sliding_window or sliding_window_pattern is no number");
  }
  ReadWindows(reader, config,
              [every](int64_t layer) { return every > 0 && (layer + 1) % every != 0; });
  if (!window) return;
  TurnWindowsAlone(config);
}

}  // namespace

// LG AI Research 2025: norms behind attention and feed-forward as OLMo 2 has them, and of each head
// of q and k.
constinit const FamilyTable kExaone4Family = {
    .family = Family::kExaone4,
    .model_type = "exaone4",
    .model_class = "Exaone4ForCausalLM",
    .block = {.norms = NormPlacement::kPost, .qk_norm = QkNorm::kPerHead},
    .eps = 1e-5,
    .kv_heads = 32,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadExaoneWindows(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteWindows(config, json);
          if (config.unturned.empty()) {
            json["sliding_window"] = nullptr;
          } else if (config.sliding_window == 0 && !json.contains("sliding_window")) {
            json["sliding_window"] = kUsualWindow;
          }
        },
};

}  // namespace keel::model
