#include "model/gguf/gguf_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "common/text.h"
#include "model/gguf/gguf_config.h"

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

}  // namespace

Result<Json> ReadGgufRope(GgufKeys& keys, const std::vector<float>& factors, double theta,
                          int64_t head_dim) {
  KEEL_ASSIGN_OR_RETURN(const std::string type, keys.String("rope.scaling.type", "none"));
  KEEL_ASSIGN_OR_RETURN(const double factor, keys.Double("rope.scaling.factor", 1));
  KEEL_ASSIGN_OR_RETURN(const int64_t original,
                        keys.Int("rope.scaling.original_context_length", 0));
  (void)keys.Int("rope.scaling.finetuned", 0);  // says how it was trained, changes nothing
  if (!factors.empty()) {
    if (type != "none")
      return keys.Wrong("rope.scaling.type", fmt::format("stands beside tensor {}", kRopeFactors));
    return RopeOfFactors(factors, theta, head_dim, keys.where());
  }
  if (type == "none") return Json(nullptr);
  if (type == "linear") return Json{{"rope_type", "linear"}, {"factor", factor}};
  if (type == "yarn") {
    if (original < 1) return keys.Wrong("rope.scaling.original_context_length", "is missing");
    return Json{
        {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  }
  return keys.Wrong(
      "rope.scaling.type",
      fmt::format("\"{}\" is not supported, expected none, linear or yarn", Printable(type)));
}

}  // namespace keel::model
