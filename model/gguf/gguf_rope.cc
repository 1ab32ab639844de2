#include "model/gguf/gguf_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "common/text.h"

namespace keel::model {

namespace {

// Llama 3's factors as transformers computes them.
std::vector<double> Llama3Factors(double theta, int64_t head_dim, double factor, double original) {
  constexpr double kLow = 1, kHigh = 4;
  std::vector<double> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double length = 2 * std::numbers::pi / frequency;
    if (length < original / kHigh) {
      factors.push_back(1);
    } else if (length > original / kLow) {
      factors.push_back(factor);
    } else {
      const double smooth = (original / length - kLow) / (kHigh - kLow);
      factors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return factors;
}

// The parameters are not in the file, only what they gave: they are looked for, and proved by
// every factor.
Result<Json> RopeOfFactors(const std::vector<float>& factors, double theta, int64_t head_dim,
                           std::string_view where) {
  const std::string what = fmt::format("{}: tensor {}", where, kRopeFactors);
  if (std::ssize(factors) != head_dim / 2) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {} values, expected {}", what, factors.size(), head_dim / 2));
  }
  const double factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  for (const int64_t original : {8192, 4096, 16384, 32768}) {
    const std::vector<double> expected =
        Llama3Factors(theta, head_dim, factor, static_cast<double>(original));
    bool same = true;
    for (size_t i = 0; i < factors.size(); ++i)
      same = same && std::abs(static_cast<double>(factors[i]) - expected[i]) <= 1e-4 * expected[i];
    if (!same) continue;
    return Json{{"rope_type", "llama3"},
                {"factor", factor},
                {"low_freq_factor", 1.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", original}};
  }
  return Status(StatusCode::kInvalidData,
                what + ": is no scaling of Llama 3 that Keel knows, so it is refused");
}

// YaRN as the keys have it; what they leave out is the same in Hugging Face's config.json.
Result<Json> ReadYarn(GgufKeys& keys, double factor, int64_t original) {
  if (original < 1) return keys.Wrong("rope.scaling.original_context_length", "is missing");
  Json yarn = {
      {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  // How much of the unstretched rotation is mixed in, of which Hugging Face has all; below 0: the
  // default.
  constexpr const char* kMix = "rope.scaling.yarn_ext_factor";
  KEEL_ASSIGN_OR_RETURN(const double mix, keys.Double(kMix, 1));
  if (mix >= 0 && mix != 1)
    return keys.Wrong(kMix, fmt::format("{} is not supported, expected 1", mix));
  constexpr std::pair<const char*, const char*> kNumbers[] = {
      {"rope.scaling.yarn_attn_factor", "attention_factor"},
      {"rope.scaling.yarn_beta_fast", "beta_fast"},
      {"rope.scaling.yarn_beta_slow", "beta_slow"}};
  for (const auto& [key, name] : kNumbers) {
    if (!keys.Has(key)) continue;
    KEEL_ASSIGN_OR_RETURN(const double number, keys.Double(key));
    yarn[name] = GgufShortest(number);
  }
  return yarn;
}

// Null where positions are not stretched.
Result<Json> ReadScaling(GgufKeys& keys, const GgufRotation& rotation, double theta) {
  KEEL_ASSIGN_OR_RETURN(const double factor, keys.Double("rope.scaling.factor", 1));
  // A factor without a type is linear; 0 is none.
  const bool stretched = factor != 0 && factor != 1;
  KEEL_ASSIGN_OR_RETURN(const std::string type,
                        keys.String("rope.scaling.type", stretched ? "linear" : "none"));
  KEEL_ASSIGN_OR_RETURN(const int64_t original,
                        keys.Int("rope.scaling.original_context_length", 0));
  (void)keys.Int("rope.scaling.finetuned", 0);  // says how it was trained, changes nothing
  const std::vector<float>& scaled = rotation.factors.scaled;
  if (!scaled.empty()) {
    if (type != "none")
      return keys.Wrong("rope.scaling.type", fmt::format("stands beside tensor {}", kRopeFactors));
    return RopeOfFactors(scaled, theta, rotation.head_dim, keys.where());
  }
  if (type == "none") return Json(nullptr);
  if (type == "linear") return Json{{"rope_type", "linear"}, {"factor", factor}};
  if (type == "yarn") return ReadYarn(keys, factor, original);
  return keys.Wrong(
      "rope.scaling.type",
      fmt::format("\"{}\" is not supported, expected none, linear or yarn", Printable(type)));
}

Result<double> ReadTheta(GgufKeys& keys) { return keys.Double("rope.freq_base", 10000); }

// The part of a head's dims that turn, of which the product with the head's size, cut to an
// integer, is `dims` again.
double PartOf(int64_t dims, int64_t head_dim) {
  const auto size = static_cast<double>(head_dim);
  const double part = static_cast<double>(dims) / size;
  return static_cast<int64_t>(size * part) == dims ? part : std::nextafter(part, 2);
}

Result<Json> NumbersOf(const std::vector<float>& factors, std::string_view tensor, int64_t count,
                       std::string_view where) {
  const auto wrong = [&](const std::string& problem) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: tensor {}: {}", where, tensor, problem));
  };
  if (factors.empty()) return wrong("is missing, and the other list of factors is there");
  if (std::ssize(factors) != count)
    return wrong(fmt::format("{} values, expected {}", factors.size(), count));
  Json numbers = Json::array();
  for (const float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0)
      return wrong(fmt::format("{} is no factor of a rotation", factor));
    numbers.push_back(GgufShortest(static_cast<double>(factor)));
  }
  return numbers;
}

// How much a longer context sharpens the scores, where the file does not differ from it.
double LongropeSharpening(int64_t positions, int64_t original) {
  if (positions <= original || original <= 1) return 1;
  const double growth = static_cast<double>(positions) / static_cast<double>(original);
  return std::sqrt(1 + std::log(growth) / std::log(static_cast<double>(original)));
}

}  // namespace

Status ReadGgufRope(GgufKeys& keys, const GgufRotation& rotation, Json* config) {
  // A head is turned whole.
  KEEL_RETURN_IF_ERROR(keys.Expect("rope.dimension_count", rotation.head_dim));
  KEEL_ASSIGN_OR_RETURN(const double theta, ReadTheta(keys));
  KEEL_ASSIGN_OR_RETURN(const Json scaling, ReadScaling(keys, rotation, theta));
  (*config)["rope_theta"] = GgufShortest(theta);
  if (!scaling.is_null()) (*config)["rope_scaling"] = scaling;
  return Status::Ok();
}

Status ReadGgufTwoRopes(GgufKeys& keys, const GgufRotation& rotation, Json* config) {
  KEEL_RETURN_IF_ERROR(keys.Expect("rope.dimension_count", rotation.head_dim));
  KEEL_ASSIGN_OR_RETURN(const double theta, ReadTheta(keys));
  KEEL_ASSIGN_OR_RETURN(const double local, keys.Double("rope.freq_base_swa", theta));
  KEEL_ASSIGN_OR_RETURN(Json full, ReadScaling(keys, rotation, theta));
  if (full.is_null()) full = {{"rope_type", "default"}};
  full["rope_theta"] = GgufShortest(theta);
  (*config)["rope_parameters"] = {
      {"full_attention", full},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", GgufShortest(local)}}}};
  return Status::Ok();
}

Status ReadGgufPhiRope(GgufKeys& keys, const GgufRotation& rotation, Json* config) {
  // 1. How much of a head turns, and by which base.
  constexpr const char* kDims = "rope.dimension_count";
  KEEL_ASSIGN_OR_RETURN(const int64_t dims, keys.Int(kDims, rotation.head_dim));
  if (dims < 2 || dims % 2 != 0 || dims > rotation.head_dim) {
    return keys.Wrong(
        kDims, fmt::format("{} is no number of dims of a head of {}", dims, rotation.head_dim));
  }
  if (dims != rotation.head_dim)
    (*config)["partial_rotary_factor"] = PartOf(dims, rotation.head_dim);
  KEEL_ASSIGN_OR_RETURN(const double theta, ReadTheta(keys));
  (*config)["rope_theta"] = GgufShortest(theta);

  // 2. The context before it was stretched.
  constexpr const char* kOriginal = "rope.scaling.original_context_length";
  KEEL_ASSIGN_OR_RETURN(const int64_t original, keys.Int(kOriginal, rotation.positions));
  if (original < 1) return keys.Wrong(kOriginal, "expected 1 or more");
  (*config)["original_max_position_embeddings"] = original;

  // 3. The factors, of which files have both lists or none, and how much scores are sharpened.
  constexpr const char* kType = "rope.scaling.type";
  constexpr const char* kSharpening = "rope.scaling.attn_factor";
  KEEL_ASSIGN_OR_RETURN(const std::string type, keys.String(kType, "longrope"));
  const GgufRopeFactors& factors = rotation.factors;
  if (factors.longs.empty() && factors.shorts.empty()) {
    for (const char* key : {kType, kSharpening}) {
      if (!keys.Has(key) || (key == kType && type == "none")) continue;
      return keys.Wrong(key, fmt::format("is there, and tensors {} and {} are missing",
                                         kLongRopeFactors, kShortRopeFactors));
    }
    return Status::Ok();
  }
  if (type != "longrope") {
    return keys.Wrong(kType, fmt::format("\"{}\" stands beside tensor {}, expected longrope",
                                         Printable(type), kLongRopeFactors));
  }
  Json scaling = {{"type", "longrope"}};
  KEEL_ASSIGN_OR_RETURN(scaling["long_factor"],
                        NumbersOf(factors.longs, kLongRopeFactors, dims / 2, keys.where()));
  KEEL_ASSIGN_OR_RETURN(scaling["short_factor"],
                        NumbersOf(factors.shorts, kShortRopeFactors, dims / 2, keys.where()));
  KEEL_ASSIGN_OR_RETURN(const double sharpening, keys.Double(kSharpening));
  const double expected = LongropeSharpening(rotation.positions, original);
  // As a float32 the file's is that which config.json need not say, or another one.
  if (static_cast<float>(sharpening) != static_cast<float>(expected))
    scaling["attention_factor"] = GgufShortest(sharpening);
  (*config)["rope_scaling"] = scaling;
  return Status::Ok();
}

}  // namespace keel::model
