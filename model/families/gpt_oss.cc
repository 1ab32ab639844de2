// The family of gpt-oss.

#include "model/config/family_table.h"

namespace keel::model {

// OpenAI 2025: gpt-oss-20b and 120b. Attention sinks, a window in every second layer, biases on all
// projections, and clamped experts in every layer.
constinit const FamilyTable kGptOssFamily = {
    .family = Family::kGptOss,
    .model_type = "gpt_oss",
    .model_class = "GptOssForCausalLM",
    .positions = 131'072,
    .block = {.sinks = true},
    .moe_names = {.router = "mlp.router"},
    .head_dim = 64,
    .eps = 1e-5,
    .theta = 150'000,
    .kv_heads = 8,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadNeededRope(reader, config);
          constexpr int64_t kWindow = 128;
          ReadWindows(
              reader, config, [](int64_t layer) { return layer % 2 == 0; }, kWindow);
          config.attention_bias = config.output_bias = reader.Bool("attention_bias", true);
          ReadExperts(reader, config, {.experts = 128, .top_k = 4});
          MoeSpec& moe = config.moe;
          moe.kind = ExpertKind::kClamped;
          moe.width = config.intermediate_size;
          moe.renormalize = true;
          moe.gate_alpha = reader.Within(0, 1e3, "swiglu_alpha", moe.gate_alpha);
          moe.gate_limit = reader.Within(1e-3, 1e6, "swiglu_limit", moe.gate_limit);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteNeededRope(config, json);
          json["attention_bias"] = config.output_bias;
          WriteWindows(config, json);
          json.erase("num_experts");
          json["num_local_experts"] = config.moe.experts;
          WriteExperts(config, json);
          json["swiglu_alpha"] = config.moe.gate_alpha;
          json["swiglu_limit"] = config.moe.gate_limit;
        },
};

}  // namespace keel::model
