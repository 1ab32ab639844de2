#include "model/config/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr double kMostTheta = 1e30;
constexpr double kMostFactor = 1e6;

double LongropeSharpening(const RopeSpec& spec) {
  const double context = std::log(static_cast<double>(spec.original_positions));
  return spec.factor <= 1 || context <= 0 ? 1 : std::sqrt(1 + std::log(spec.factor) / context);
}

void ReadOriginal(ConfigReader& rope, const RopeContext& context, RopeSpec& spec,
                  std::string_view type) {
  if (context.original_positions > 0) {  // which the map's own gives way to
    spec.original_positions = context.original_positions;
    return;
  }
  if (rope.Find("original_max_position_embeddings") == nullptr) {
    if (context.max_positions == 0)
      rope.Missing("original_max_position_embeddings",
                   fmt::format("a number, for rope_type {}", type));
    spec.original_positions = std::max<int64_t>(1, context.max_positions);  // as transformers does
    return;
  }
  spec.original_positions = rope.Positive("original_max_position_embeddings", 1, kMostPositions);
}

void ReadFactor(ConfigReader& rope, RopeSpec& spec, std::string_view type,
                std::optional<double> fallback) {
  if (rope.Find("factor") == nullptr && !fallback)
    rope.Missing("factor", fmt::format("a number, for rope_type {}", type));
  spec.factor = rope.Within(1e-6, kMostFactor, "factor", fallback.value_or(1));
}

// The context's growth, for a map that does not say its factor.
double Growth(const RopeContext& context, const RopeSpec& spec) {
  if (context.max_positions == 0) return 1;  // which is refused elsewhere
  return static_cast<double>(context.max_positions) /
         static_cast<double>(std::max<int64_t>(1, spec.original_positions));
}

void ReadYarn(ConfigReader& rope, const RopeContext& context, RopeSpec& spec) {
  ReadOriginal(rope, context, spec, "yarn");
  ReadFactor(rope, spec, "yarn", Growth(context, spec));
  // 0 means the default, as null does.
  const double fast = rope.Within(0, kMostFactor, "beta_fast", 32);
  const double slow = rope.Within(0, kMostFactor, "beta_slow", 1);
  spec.beta_fast = fast == 0 ? 32 : fast;
  spec.beta_slow = slow == 0 ? 1 : slow;
  // Written as null it is false, and left out true.
  spec.truncate = rope.Bool("truncate", !rope.json().contains("truncate"));
  if (context.one_of_two && !spec.truncate)
    rope.Wrong("truncate", "true or no such key for this model_type", rope.json().at("truncate"));
  const double mscale = rope.Within(0, kMostFactor, "mscale", 0);
  const double all_dims = rope.Within(0, kMostFactor, "mscale_all_dim", 0);
  const double sharpening = mscale != 0 && all_dims != 0 ? YarnSharpening(spec.factor, mscale) /
                                                               YarnSharpening(spec.factor, all_dims)
                                                         : YarnSharpening(spec.factor, 1);
  spec.attention_factor = rope.Within(0, kMostFactor, "attention_factor", sharpening);
  if (context.latent) spec.sharpened_scores = all_dims;
}

void ReadLongrope(ConfigReader& rope, const RopeContext& context, RopeSpec& spec) {
  ReadOriginal(rope, context, spec, "longrope");
  ReadFactor(rope, spec, "longrope", Growth(context, spec));
  const auto count = static_cast<size_t>(spec.RotatedDims(context.head_dim) / 2);
  for (const char* key : {"short_factor", "long_factor"}) {
    const Json* list = rope.Find(key);
    if (list == nullptr || !list->is_array() || list->size() == count) continue;
    rope.Problem(
        fmt::format("{} is for {} dims, and {} turn of head_dim {} (hidden_size / "
                    "num_attention_heads where it is not given)",
                    key, 2 * list->size(), 2 * count, context.head_dim));
  }
  spec.short_factors = rope.Numbers("short_factor", count, 1e-6, kMostFactor);
  spec.long_factors = rope.Numbers("long_factor", count, 1e-6, kMostFactor);
  spec.attention_factor = rope.Within(0, kMostFactor, "attention_factor", LongropeSharpening(spec));
}

void ReadLlama3(ConfigReader& rope, const RopeContext& context, RopeSpec& spec) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"})
    if (rope.Find(key) == nullptr) rope.Missing(key, "a number, for rope_type llama3");
  ReadFactor(rope, spec, "llama3", std::nullopt);
  ReadOriginal(rope, context, spec, "llama3");
  spec.low_freq_factor = rope.Number("low_freq_factor", spec.low_freq_factor);
  spec.high_freq_factor = rope.Number("high_freq_factor", spec.high_freq_factor);
  if (spec.low_freq_factor <= 0 || spec.high_freq_factor <= spec.low_freq_factor) {
    rope.Problem("expected high_freq_factor > low_freq_factor > 0");
  }
}

void ReadQueryScale(ConfigReader& rope, RopeSpec& spec) {
  constexpr const char* kBeta = "llama_4_scaling_beta";
  constexpr const char* kPositions = "original_max_position_embeddings";
  for (const char* key : {kBeta, kPositions})
    if (rope.Find(key) == nullptr) rope.Missing(key, "a number, by which queries are multiplied");
  spec.query_beta = rope.Within(0, kMostFactor, kBeta, 0);
  spec.query_positions = rope.Positive(kPositions, 1, kMostPositions);
  if (spec.by_length()) {
    rope.Problem(fmt::format("rope_type {} is not supported beside {}",
                             kRopeTypeNames[static_cast<size_t>(spec.type)], kBeta));
  }
}

double Rotated(ConfigReader& reader, const RopeContext& context, double fallback) {
  const double rotated = reader.Within(0, 1, "partial_rotary_factor", fallback);
  if (rotated == 1 || context.partial) return rotated;
  reader.Problem(fmt::format(
      "partial_rotary_factor: {} is not supported for this model_type, expected 1", rotated));
  return 1;
}

std::optional<RopeType> TypeOf(std::string_view name) {
  if (name == "su") return RopeType::kLongrope;  // as the first Phi-3 files have it
  const auto it = std::find(std::begin(kRopeTypeNames), std::end(kRopeTypeNames), name);
  if (it == std::end(kRopeTypeNames)) return std::nullopt;
  return static_cast<RopeType>(it - std::begin(kRopeTypeNames));
}

}  // namespace

RopeSpec ReadRopeMap(const Json& map, const RopeContext& context, ConfigReader& reader) {
  RopeSpec spec;
  spec.theta = context.theta;
  if (!map.is_object()) {
    reader.Wrong("rope_parameters", "a map", map);
    return spec;
  }
  ConfigReader rope(map, "");
  spec.theta = rope.Within(1, kMostTheta, "rope_theta", context.theta);
  spec.rotated = Rotated(rope, context, context.rotated);
  const int64_t dims = spec.RotatedDims(context.head_dim);
  if (context.head_dim > 0 && (dims < 2 || dims % 2 != 0)) {
    rope.Problem(fmt::format(
        "partial_rotary_factor: {} of head_dim {} turns {} dims, expected an even number",
        spec.rotated, context.head_dim, dims));
  }
  const std::string name = rope.String("rope_type", rope.String("type", "default"));
  const std::optional<RopeType> type = TypeOf(name);
  if (!type) {
    reader.Problem(fmt::format("rope_type: \"{}\" is not supported, expected one of {}",
                               Printable(name), fmt::join(kRopeTypeNames, ", ")));
    return spec;
  }
  spec.type = *type;
  const bool grows = (spec.type == RopeType::kYarn || spec.type == RopeType::kLongrope) &&
                     rope.Find("factor") == nullptr;
  if (context.max_positions == 0 && (grows || spec.type == RopeType::kDynamic)) {
    reader.Missing("max_position_embeddings", fmt::format("a number, for rope_type {}{}", name,
                                                          grows ? " without a factor" : ""));
  }
  switch (spec.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      ReadFactor(rope, spec, name, std::nullopt);
      break;
    case RopeType::kDynamic:
      ReadFactor(rope, spec, name, std::nullopt);
      spec.original_positions = context.max_positions;
      if (dims == 2) rope.Problem("rope_type dynamic needs more than two dims that turn");
      break;
    case RopeType::kYarn:
      ReadYarn(rope, context, spec);
      break;
    case RopeType::kLongrope:
      ReadLongrope(rope, context, spec);
      break;
    case RopeType::kLlama3:
      ReadLlama3(rope, context, spec);
      break;
  }
  if (context.scaled_queries) ReadQueryScale(rope, spec);
  if (context.latent && spec.type != RopeType::kYarn && spec.type != RopeType::kDefault &&
      rope.Within(0, kMostFactor, "mscale_all_dim", 0) != 0)
    rope.Problem(fmt::format("mscale_all_dim is not supported with rope_type {}", name));
  if (!rope.status().ok()) reader.Problem("rope_parameters" + rope.status().message());
  return spec;
}

RopeSpec ReadRope(ConfigReader& reader, RopeContext context) {
  context.theta = reader.Within(1, kMostTheta, "rope_theta", context.theta);
  context.rotated = Rotated(reader, context, context.rotated);
  const Json* parameters = reader.Find("rope_parameters");
  const Json* const scaling = reader.Find("rope_scaling");
  const Json none = Json::object();
  // transformers takes the first that it was taught to know, which differs from version to version.
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    reader.Problem("rope_parameters and rope_scaling are both given, and differ: leave one out");
    return {};
  }
  if (parameters == nullptr) parameters = scaling;
  if (parameters == nullptr) parameters = &none;
  if (parameters->is_object()) {
    for (const auto& [key, value] : parameters->items()) {
      if (value.is_object()) {
        reader.Problem(
            fmt::format("rope_parameters: \"{}\": one for each kind of layer is not supported",
                        Printable(key)));
        return {};
      }
    }
  }
  return ReadRopeMap(*parameters, context, reader);
}

Json RopeScalingJson(const RopeSpec& spec) {
  if (spec.type == RopeType::kDefault) return nullptr;
  Json json = {{"rope_type", kRopeTypeNames[static_cast<size_t>(spec.type)]},
               {"factor", spec.factor}};
  if (spec.type == RopeType::kLlama3) {
    json["low_freq_factor"] = spec.low_freq_factor;
    json["high_freq_factor"] = spec.high_freq_factor;
  }
  // What follows from the rest is left out, as files have it.
  if (spec.type == RopeType::kYarn) {
    const RopeSpec plain;
    if (spec.beta_fast != plain.beta_fast) json["beta_fast"] = spec.beta_fast;
    if (spec.beta_slow != plain.beta_slow) json["beta_slow"] = spec.beta_slow;
    if (!spec.truncate) json["truncate"] = false;
    if (spec.attention_factor != YarnSharpening(spec.factor, 1))
      json["attention_factor"] = spec.attention_factor;
    if (spec.sharpened_scores != 0) json["mscale_all_dim"] = spec.sharpened_scores;
  }
  if (spec.type == RopeType::kLongrope) {
    json["short_factor"] = spec.short_factors;
    json["long_factor"] = spec.long_factors;
    if (spec.attention_factor != LongropeSharpening(spec))
      json["attention_factor"] = spec.attention_factor;
  }
  if (spec.type != RopeType::kLinear && spec.type != RopeType::kDynamic)
    json["original_max_position_embeddings"] = spec.original_positions;
  return json;
}

Json RopeParametersJson(const RopeSpec& spec) {
  Json rope = RopeScalingJson(spec);
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = spec.theta;
  if (spec.rotated != 1) rope["partial_rotary_factor"] = spec.rotated;
  if (spec.query_positions > 0) {
    rope["llama_4_scaling_beta"] = spec.query_beta;
    rope["original_max_position_embeddings"] = spec.query_positions;
  }
  return rope;
}

std::string RopeText(const RopeSpec& spec) {
  std::string text = fmt::format("theta {}", spec.theta);
  if (spec.rotated != 1) text += fmt::format(" rotated {}", spec.rotated);
  if (spec.interleaved) text += " interleaved";
  if (spec.query_beta > 0)
    text += fmt::format(" queries {} {}", spec.query_beta, spec.query_positions);
  if (spec.type == RopeType::kLlama3) {
    return text + fmt::format(" llama3 {} {} {} {}", spec.factor, spec.low_freq_factor,
                              spec.high_freq_factor, spec.original_positions);
  }
  if (spec.type == RopeType::kDefault) return text;
  return text + " " + RopeScalingJson(spec).dump() +
         (spec.type == RopeType::kDynamic ? fmt::format(" {}", spec.original_positions) : "");
}

}  // namespace keel::model
