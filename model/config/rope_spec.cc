#include "model/config/rope_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keel::model {

namespace {

// Llama-3: long waves are stretched by `factor`, short ones kept, those between interpolated.
float Llama3Frequency(const RopeSpec& s, float frequency) {
  const double wave = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(s.original_positions);
  if (wave > context / s.low_freq_factor) return static_cast<float>(frequency / s.factor);
  if (wave < context / s.high_freq_factor) return frequency;
  const double smooth =
      (context / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / s.factor + smooth * frequency);
}

// YaRN (Peng et al. 2023): frequencies that turn more than beta_fast times within the original
// context are kept, those that turn less than beta_slow times divided, and a ramp joins the two.
void StretchYarn(const RopeSpec& s, int64_t dims, std::vector<float>& frequencies) {
  const auto d = static_cast<double>(dims);
  const auto dim_of = [&](double rotations) {
    return d *
           std::log(static_cast<double>(s.original_positions) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(s.theta));
  };
  double low = dim_of(s.beta_fast);
  double high = dim_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const auto ramp = static_cast<float>((static_cast<double>(i) - low) / (high - low));
    const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float divided = frequencies[i] / static_cast<float>(s.factor);
    frequencies[i] = divided * (1 - kept) + frequencies[i] * kept;
  }
}

}  // namespace

double YarnSharpening(double scale, double weight) {
  return scale <= 1 ? 1 : 0.1 * weight * std::log(scale) + 1;
}

double RopeSpec::ScoreFactor() const {
  if (sharpened_scores == 0) return 1;
  const double sharpening = YarnSharpening(factor, sharpened_scores);
  return sharpening * sharpening;
}

int64_t RopeSpec::RotatedDims(int64_t head_dim) const {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rotated);
}

std::vector<float> RopeFrequencies(const RopeSpec& spec, int64_t head_dim, int64_t length) {
  const int64_t dims = spec.RotatedDims(head_dim);
  double theta = spec.theta;
  if (spec.type == RopeType::kDynamic) {
    // The base grows with the text, so that its end turns as far as the original context's did.
    const auto original = static_cast<double>(spec.original_positions);
    const double longer = std::max(static_cast<double>(length), original) / original;
    const auto d = static_cast<double>(dims);
    theta *= std::pow(spec.factor * longer - (spec.factor - 1), d / (d - 2));
  }
  std::vector<float> frequencies(static_cast<size_t>(dims / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    float power = std::pow(static_cast<float>(theta), exponent);
    if (spec.type == RopeType::kLongrope) {
      const bool is_long = length > spec.original_positions;
      power *= static_cast<float>((is_long ? spec.long_factors : spec.short_factors)[i]);
    }
    frequencies[i] = 1.0f / power;
    if (spec.type == RopeType::kLinear) frequencies[i] /= static_cast<float>(spec.factor);
    if (spec.type == RopeType::kLlama3) frequencies[i] = Llama3Frequency(spec, frequencies[i]);
  }
  if (spec.type == RopeType::kYarn) StretchYarn(spec, dims, frequencies);
  return frequencies;
}

}  // namespace keel::model
