// The families of Phi: the first two, and Phi-3 and Phi-4.

#include <fmt/format.h>

#include <string_view>

#include "model/config/family_table.h"
#include "model/config/rope_config.h"

namespace keel::model {

namespace {

constexpr std::string_view kContext = "original_max_position_embeddings";

// Unlike other families' the context before the stretch stands beside the map, and a part of a
// head's dims may turn.
void ReadPhiRope(ConfigReader& reader, HfConfig& config) {
  const int64_t original = reader.Positive(kContext, 4096, kMostPositions);
  config.rope = ReadRope(reader, {.head_dim = config.head_dim,
                                  .max_positions = PositionsSaid(reader, config),
                                  .partial = true,
                                  .original_positions = original});
  if (config.rope.type != RopeType::kDefault && config.rope.type != RopeType::kLongrope) {
    reader.Problem(
        fmt::format("rope_type: expected default or longrope for model_type phi3, found {}",
                    kRopeTypeNames[static_cast<size_t>(config.rope.type)]));
  }
}

}  // namespace

// Gunasekar et al. 2023, Li et al. 2023; Phi-1, 1.5 and 2: attention and feed-forward behind one
// norm by mean and variance; half of each head turns; biases on all matrices, and on logits.
constinit const FamilyTable kPhiFamily = {
    .family = Family::kPhi,
    .model_type = "phi",
    .model_class = "PhiForCausalLM",
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .one_norm = true,
              .ffn = FfnKind::kPlain},
    .head_bias = true,
    .eps_key = "layer_norm_eps",
    .eps = 1e-5,
    .rotated = 0.5,
    .activation = "gelu_new",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = config.output_bias = config.mlp_bias = true;
          config.parallel_residual = true;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["qk_layernorm"] = false;
        },
};

// Abdin et al. 2024; Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's block. Its files fuse q, k and
// v, and gate and up (checkpoint/hf/fused_tensors.h).
constinit const FamilyTable kPhi3Family = {
    .family = Family::kPhi3,
    .model_type = "phi3",
    .model_class = "Phi3ForCausalLM",
    .positions = 4'096,
    .eps = 1e-5,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadPhiRope(reader, config);
          ReadOneWindow(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          if (config.rope.type == RopeType::kLongrope) {
            json[kContext] = config.rope.original_positions;
            // transformers 4 takes these three keys and no others.
            const Json said = json["rope_scaling"];
            json["rope_scaling"] = {{"type", "longrope"},
                                    {"short_factor", said["short_factor"]},
                                    {"long_factor", said["long_factor"]}};
            if (said.contains("attention_factor"))
              json["rope_scaling"]["attention_factor"] = said["attention_factor"];
          }
          WriteOneWindow(config, json);
        },
};

}  // namespace keel::model
