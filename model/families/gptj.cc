// The family of GPT-J.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// The part of a head of which so many dims turn, whichever way quotients are rounded.
double PartThatTurns(int64_t dims, int64_t head_dim) {
  const double part = static_cast<double>(dims) / static_cast<double>(head_dim);
  return RopeSpec{.rotated = part}.RotatedDims(head_dim) == dims ? part : std::nextafter(part, 1);
}

void ReadGptJ(ConfigReader& reader, HfConfig& config) {
  RefuseFewerKeyHeads(reader, config);
  config.output_bias = config.attention_bias = false;
  config.mlp_bias = config.parallel_residual = true;
  RefuseRotation(reader, config);
  if (reader.json().contains("rotary_dim") && reader.Find("rotary_dim") == nullptr)
    reader.Problem("rotary_dim: null is not supported, expected how many dims of a head turn");
  const int64_t head_dim = std::max<int64_t>(1, config.head_dim);
  const int64_t turned = reader.Positive("rotary_dim", 64, kMostHeads);
  if (turned > head_dim || turned % 2 != 0) {
    reader.Problem(fmt::format("rotary_dim: {}: expected an even number of a head's {} dims",
                               turned, head_dim));
  }
  config.rope.rotated = PartThatTurns(std::min(turned, head_dim), head_dim);
  config.rope.interleaved = true;
  PassOverGptHeads(reader);
  PassOver(reader, {"n_ctx", "rotary", "scale_attn_weights", "task_specific_params"});
}

void WriteGptJ(const HfConfig& config, Json& json) {
  EraseHeadKeys(json);
  json["residual_dropout"] = config.residual_dropout;
  json["rotary_dim"] = config.rope.RotatedDims(config.head_dim);
}

}  // namespace

// Wang & Komatsuzaki 2021: attention and feed-forward behind one norm by mean and variance; the
// first dims of each head turn, dim 2i with dim 2i + 1; biases in the feed-forward and on logits.
constinit const FamilyTable kGptJFamily = {
    .family = Family::kGptJ,
    .model_type = "gptj",
    .model_class = "GPTJForCausalLM",
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .one_norm = true,
              .ffn = FfnKind::kPlain},
    .head_bias = true,
    .keeps_masks = true,
    .keys = kGpt2Keys,
    .eps_key = "layer_norm_epsilon",
    .eps = 1e-5,
    .width_key = "n_inner",
    .width_times = 4,
    .activation_key = "activation_function",
    .activation = "gelu_new",
    .read = ReadGptJ,
    .write = WriteGptJ,
};

}  // namespace keel::model
