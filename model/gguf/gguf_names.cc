#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "common/text.h"

namespace keel::model {

namespace {

struct Renamed {
  std::string_view gguf, hf;
};

constexpr Renamed kOutside[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Renamed kInLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

template <size_t kCount>
std::string_view HfName(const Renamed (&names)[kCount], std::string_view gguf) {
  for (const Renamed& name : names) {
    if (name.gguf == gguf) return name.hf;
  }
  return {};
}

// "blk.12.attn_q": the layer, and what stands after it.
std::optional<int64_t> TakeLayer(std::string_view* stem) {
  constexpr std::string_view kBegin = "blk.";
  if (!stem->starts_with(kBegin)) return std::nullopt;
  const std::string_view rest = stem->substr(kBegin.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return std::nullopt;
  if (layer < 0 || (rest[0] == '0' && end != rest.data() + 1)) return std::nullopt;
  *stem = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
  return layer;
}

}  // namespace

Result<HfPlace> HfPlaceOf(std::string_view tensor, const GgufConfig& config,
                          std::string_view where) {
  const size_t dot = tensor.rfind('.');
  std::string_view stem = tensor.substr(0, dot);
  const std::string_view end = dot == std::string_view::npos ? "" : tensor.substr(dot + 1);
  if (end == "weight" || end == "bias") {
    const std::string_view gguf = stem;
    if (const std::string_view name = HfName(kOutside, gguf); !name.empty())
      return HfPlace{fmt::format("{}.{}", name, end), 0};
    if (const std::optional<int64_t> layer = TakeLayer(&stem)) {
      if (const std::string_view name = HfName(kInLayer, stem); !name.empty()) {
        const bool mixed =
            config.family == GgufFamily::kLlama && (stem == "attn_q" || stem == "attn_k");
        return HfPlace{fmt::format("model.layers.{}.{}.{}", *layer, name, end),
                       mixed ? config.head_dim : 0};
      }
    }
  }
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: tensor {}: Keel knows no place for it in a model of architecture "
                            "{}",
                            where, Printable(tensor), GgufFamilyName(config.family)));
}

int64_t GgufRow(const HfPlace& place, int64_t row) {
  if (place.mixed_head_rows == 0) return row;
  const int64_t head = row / place.mixed_head_rows;
  const int64_t in_head = row % place.mixed_head_rows;
  const int64_t pairs = place.mixed_head_rows / 2;
  return head * place.mixed_head_rows + (in_head % pairs) * 2 + in_head / pairs;
}

}  // namespace keel::model
