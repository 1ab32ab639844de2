// The families of OLMo 2, OLMo 3 and OLMoE.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

constexpr LayerSpec kOlmoBlock = {.norms = NormPlacement::kPost, .qk_norm = QkNorm::kFullWidth};

constexpr double kOlmo3Theta = 500'000;

}  // namespace

// OLMo et al. 2024: norms behind attention and feed-forward, and over all heads of q and of k.
constinit const FamilyTable kOlmo2Family = {
    .family = Family::kOlmo2,
    .model_type = "olmo2",
    .model_class = "Olmo2ForCausalLM",
    .block = kOlmoBlock,
    .eps = 1e-5,
    .read = ReadRopeAndBias,
    .write = WriteRopeAndBias,
};

// As OLMo 2, with windows in three layers of four, whose rotation is never stretched.
constinit const FamilyTable kOlmo3Family = {
    .family = Family::kOlmo3,
    .model_type = "olmo3",
    .model_class = "Olmo3ForCausalLM",
    .block = kOlmoBlock,
    .eps = 1e-5,
    .theta = kOlmo3Theta,
    .two_rotations = true,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          if (!ReadTwoRopes(reader, config, kOlmo3Theta)) {
            ReadMainRope(reader, config);
            if (config.rope.theta != kOlmo3Theta) {
              // transformers would turn the layers with a window by the default all the same.
              reader.Problem(
                  "rope_theta: expected 500000, or rope_parameters with full_attention and "
                  "sliding_attention");
            }
            if (config.rope.type != RopeType::kDefault)
              config.local_rope = RopeSpec{.theta = kOlmo3Theta};
          }
          ReadAttentionBias(reader, config);
          ReadWindows(
              reader, config, [](int64_t layer) { return (layer + 1) % 4 != 0; }, kUsualWindow);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteTwoRopes(config, json);
          json["attention_bias"] = config.output_bias;
          WriteWindows(config, json);
        },
};

// Muennighoff et al. 2024: norms before attention and feed-forward, and experts in every layer.
constinit const FamilyTable kOlmoeFamily = {
    .family = Family::kOlmoe,
    .model_type = "olmoe",
    .model_class = "OlmoeForCausalLM",
    .positions = 4'096,
    .block = {.qk_norm = QkNorm::kFullWidth},
    .eps = 1e-5,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadRopeAndBias(reader, config);
          ReadExperts(reader, config, {.experts = 64, .top_k = 8}, 0.01);
          config.moe.width = config.intermediate_size;
          config.moe.renormalize = reader.Bool("norm_topk_prob", false);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteRopeAndBias(config, json);
          json.erase("num_local_experts");
          json["num_experts"] = config.moe.experts;
          json["norm_topk_prob"] = config.moe.renormalize;
          WriteExperts(config, json);
        },
};

}  // namespace keel::model
