// The families of Gemma, Gemma 2, Gemma 3 and VaultGemma.

#include <fmt/format.h>

#include "model/config/family_table.h"
#include "model/config/rope_config.h"

namespace keel::model {

namespace {

void ReadGemma(ConfigReader& reader, HfConfig& config) {
  ReadAttentionBias(reader, config);
  reader.Find("hidden_act");  // older files have it beside hidden_activation, which is the one
  config.query_pre_attn_scalar = reader.Within(1e-3, 1e9, "query_pre_attn_scalar", 256);
  const bool second = config.family != Family::kGemma3;  // VaultGemma, too
  // Files of Gemma 3 have this one, too, as null, and its attention has no softcap.
  if (second) config.score_softcap = ReadSoftcap(reader, "attn_logit_softcapping", 50);
  config.logit_softcap = ReadSoftcap(reader, "final_logit_softcapping", second ? 30 : 0);
}

void ReadGemma2(ConfigReader& reader, HfConfig& config) {
  ReadMainRope(reader, config);
  ReadGemma(reader, config);
  ReadWindows(
      reader, config, [](int64_t layer) { return layer % 2 == 0; }, kUsualWindow);
}

void WriteGemma(const HfConfig& config, Json& json) {
  config.family == Family::kGemma3 ? WriteTwoRopes(config, json) : WriteMainRope(config, json);
  json["attention_bias"] = config.output_bias;
  json["query_pre_attn_scalar"] = WholeNumber(config.query_pre_attn_scalar);
  const auto cap = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  json["attn_logit_softcapping"] = cap(config.score_softcap);
  json["final_logit_softcapping"] = cap(config.logit_softcap);
  WriteWindows(config, json);
}

// What all have.
constexpr FamilyTable AnyGemma(FamilyTable own) {
  own.block.norm_plus_one = own.scaled_embedding = own.tied = true;
  own.head_dim = 256;
  own.activation = "gelu_pytorch_tanh";
  return own;
}

// What Gemma 2 and 3 have.
constexpr FamilyTable Gemma(FamilyTable own) {
  own.block.norms = NormPlacement::kSandwich;
  own.kv_heads = 4;
  own.activation_key = "hidden_activation";
  return AnyGemma(own);
}

}  // namespace

// Gemma Team 2024: Llama's block with Gemma's norms and activation.
constinit const FamilyTable kGemmaFamily = AnyGemma({
    .family = Family::kGemma,
    .model_type = "gemma",
    .model_class = "GemmaForCausalLM",
    .positions = 8'192,
    .kv_heads = 16,
    .old_activation = "gelu",  // by which the published files mean the other
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadRopeAndBias(reader, config);
          // Of transformers 4, for which it counted more than hidden_act; 5 does not look at it.
          const Json* const other = reader.Find("hidden_activation");
          if (other != nullptr &&
              (*other != "gelu_pytorch_tanh" || config.activation != Activation::kGeluTanh)) {
            reader.Problem(
                fmt::format("hidden_activation: expected no such key, or \"gelu_pytorch_tanh\" as "
                            "in hidden_act, found {}",
                            Shown(*other)));
          }
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteRopeAndBias(config, json);
          json.erase("hidden_activation");
        },
});

constinit const FamilyTable kGemma2Family = Gemma({
    .family = Family::kGemma2,
    .model_type = "gemma2",
    .model_class = "Gemma2ForCausalLM",
    .positions = 8'192,
    .read = ReadGemma2,
    .write = WriteGemma,
});

// Google 2025: Gemma 2 without the norms behind attention and feed-forward. What stands before the
// feed-forward has another name in files (common/tensors/renamed_tensors.h).
constinit const FamilyTable kVaultGemmaFamily = AnyGemma({
    .family = Family::kVaultGemma,
    .model_type = "vaultgemma",
    .model_class = "VaultGemmaForCausalLM",
    .positions = 8'192,
    .kv_heads = 4,
    .activation_key = "hidden_activation",
    .read = ReadGemma2,
    .write = WriteGemma,
});

// The text model alone, model_type gemma3_text.
constinit const FamilyTable kGemma3Family = Gemma({
    .family = Family::kGemma3,
    .model_type = "gemma3_text",
    .model_class = "Gemma3ForCausalLM",
    .positions = 131'072,
    .block = {.qk_norm = QkNorm::kPerHead},
    .theta = 1'000'000,
    .two_rotations = true,
    .counts_stretched = true,  // 131072 of the files with a linear factor of 8
    .text_defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "max_position_embeddings": 131072,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0})",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          const double local_theta = reader.Within(1, 1e30, "rope_local_base_freq", 10'000);
          if (!ReadTwoRopes(reader, config, local_theta)) {
            ReadMainRope(reader, config);
            config.local_rope = RopeSpec{.theta = local_theta};
          }
          ReadGemma(reader, config);
          const int64_t pattern = reader.Positive("sliding_window_pattern", 6, kMostLayers);
          ReadWindows(
              reader, config,
              [pattern](int64_t layer) { return pattern > 0 && (layer + 1) % pattern != 0; },
              kUsualWindow);
        },
    .write = WriteGemma,
});

}  // namespace keel::model
