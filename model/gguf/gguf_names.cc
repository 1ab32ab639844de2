#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr GgufRenamed kOutside[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr GgufRenamed kInLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {"ffn_gate_inp", "mlp.gate"}};
constexpr std::string_view kRouter = "ffn_gate_inp", kSharedRouter = "ffn_gate_inp_shexp";

// Null when it is not among them.
const GgufRenamed* FindRenamed(std::span<const GgufRenamed> names, std::string_view gguf) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const GgufRenamed& name) { return name.gguf == gguf; });
  return found == names.end() ? nullptr : &*found;
}

std::string_view HfName(std::span<const GgufRenamed> names, std::string_view gguf) {
  const GgufRenamed* const found = FindRenamed(names, gguf);
  return found == nullptr ? std::string_view() : found->hf;
}

// Digits alone, as a number is written.
std::optional<int64_t> ToIndex(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  if (text[0] == '-' || (text[0] == '0' && text.size() > 1)) return std::nullopt;
  return number;
}

// "blk.12.attn_q": the layer, and what stands after it.
std::optional<int64_t> TakeLayer(std::string_view* stem) {
  constexpr std::string_view kBegin = "blk.";
  if (!stem->starts_with(kBegin)) return std::nullopt;
  const std::string_view rest = stem->substr(kBegin.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> layer = ToIndex(rest.substr(0, dot));
  if (layer) *stem = rest.substr(dot + 1);
  return layer;
}

// "attn_q": what a layer's tensor is called, empty for none.
std::string_view NameInLayer(std::string_view stem, const GgufFamilyTable& family) {
  const GgufRenamed* const own = FindRenamed(family.names, stem);
  return own != nullptr ? own->hf : HfName(kInLayer, stem);
}

// "ffn_up_exps" of all experts, or "ffn_up.5", as files of Mixtral once had them.
struct ExpertsName {
  std::string_view name;
  int64_t expert = -1;
};
std::optional<ExpertsName> ReadExpertsName(std::string_view stem, const GgufExperts& experts) {
  const auto name = [&](std::string_view gguf) { return HfName(experts.names, gguf); };
  constexpr std::string_view kStack = "_exps";
  ExpertsName found;
  if (stem.ends_with(kStack)) {
    found.name = name(stem.substr(0, stem.size() - kStack.size()));
  } else if (const size_t dot = stem.rfind('.'); dot != std::string_view::npos) {
    found.name = name(stem.substr(0, dot));
    const std::optional<int64_t> number = ToIndex(stem.substr(dot + 1));
    if (!number) return std::nullopt;
    found.expert = *number;
  }
  if (found.name.empty()) return std::nullopt;
  return found;
}

Result<std::vector<HfPlace>> PlacesOfExperts(const GgufTensor& tensor, const ExpertsName& experts,
                                             int64_t layer, const GgufConfig& config,
                                             std::string_view where) {
  const std::string_view room = GgufTableOf(config.family).experts.room;
  const auto name = [&](int64_t expert) {
    return fmt::format("model.layers.{}.{}.experts.{}.{}.weight", layer, room, expert,
                       experts.name);
  };
  if (experts.expert >= 0) return std::vector<HfPlace>{{.name = name(experts.expert)}};
  if (tensor.shape.size() != 3 || tensor.shape[0] != config.experts) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: tensor {}: expected a matrix for each of {} experts", where,
                              Printable(tensor.name), config.experts));
  }
  std::vector<HfPlace> places;
  for (int64_t expert = 0; expert < config.experts; ++expert)
    places.push_back({.name = name(expert), .expert = expert});
  return places;
}

}  // namespace

Result<std::vector<HfPlace>> HfPlacesOf(const GgufTensor& tensor, const GgufConfig& config,
                                        std::string_view where) {
  const GgufFamilyTable& family = GgufTableOf(config.family);
  const std::string_view whole = tensor.name;
  for (const std::string_view factors : family.rope_tensors)
    if (whole == factors) return std::vector<HfPlace>();
  const size_t dot = whole.rfind('.');
  std::string_view stem = whole.substr(0, dot);
  const std::string_view end = dot == std::string_view::npos ? "" : whole.substr(dot + 1);
  HfPlace place;
  place.one_added = family.one_added && stem.ends_with("norm");
  if (end == "weight" || end == "bias") {
    const std::string_view gguf = stem;
    if (const std::string_view name = HfName(kOutside, gguf); !name.empty()) {
      place.name = fmt::format("{}.{}", name, end);
      return std::vector<HfPlace>{place};
    }
    if (const std::optional<int64_t> layer = TakeLayer(&stem)) {
      if (const std::string_view name = NameInLayer(stem, family); !name.empty()) {
        place.name = fmt::format("model.layers.{}.{}.{}", *layer, name, end);
        place.one_row = stem == kSharedRouter && end == "weight";
        place.router = config.experts > 0 && (stem == kRouter || stem == kSharedRouter);
        if (family.mixed_heads && (stem == "attn_q" || stem == "attn_k"))
          place.mixed_head_rows = config.head_dim;
        return std::vector<HfPlace>{place};
      }
      const auto experts = ReadExpertsName(stem, family.experts);
      if (config.experts > 0 && experts && end == "weight")
        return PlacesOfExperts(tensor, *experts, *layer, config, where);
    }
  }
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: tensor {}: Keel knows no place for it in a model of architecture "
                            "{}",
                            where, Printable(whole), family.architecture));
}

GgufTensor PartAt(const HfPlace& place, const GgufTensor& tensor) {
  GgufTensor part = tensor;
  if (place.one_row) part.shape = {1, tensor.shape.elements()};
  if (place.expert < 0) return part;
  part.shape = {tensor.shape[1], tensor.shape[2]};
  part.bytes = tensor.bytes / tensor.shape[0];  // rows are whole blocks
  part.offset += place.expert * part.bytes;
  return part;
}

int64_t GgufRow(const HfPlace& place, int64_t row) {
  if (place.mixed_head_rows == 0) return row;
  const int64_t head = row / place.mixed_head_rows;
  const int64_t in_head = row % place.mixed_head_rows;
  const int64_t pairs = place.mixed_head_rows / 2;
  return head * place.mixed_head_rows + (in_head % pairs) * 2 + in_head / pairs;
}

}  // namespace keel::model
