// RopeSpec: how rotary position embeddings turn queries and keys (Su et al. 2021, and the ways to
// stretch them over longer texts that transformers knows by rope_type). Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace keel::model {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3 };
inline constexpr std::string_view kRopeTypeNames[] = {"default", "linear",   "dynamic",
                                                      "yarn",    "longrope", "llama3"};

struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double rotated = 1;  // the part of a head's dims that is turned, the first ones
  // Of what turns, dim 2i with dim 2i + 1, in place of i with i + half.
  bool interleaved = false;
  double factor = 1;  // of all types but kDefault
  // The context that the model was made for, before it was stretched: of kYarn, kLongrope, kLlama3,
  // and of kDynamic, which takes it from max_position_embeddings.
  int64_t original_positions = 0;
  double low_freq_factor = 1;  // kLlama3
  double high_freq_factor = 4;
  double beta_fast = 32;  // kYarn
  double beta_slow = 1;
  bool truncate = true;
  // What cosine and sine are multiplied by, as the reader worked it out of attention_factor, mscale
  // and the factor.
  double attention_factor = 1;
  // mscale_all_dim of kYarn with latent attention (LatentSpec), whose scores it sharpens, too.
  double sharpened_scores = 0;
  // Above 0: queries at position p are multiplied by 1 + query_beta ln(1 + floor(p /
  // query_positions)), as Llama 4 has it. Of no type that goes by_length().
  double query_beta = 0;
  int64_t query_positions = 0;
  std::vector<double> short_factors = {};  // kLongrope, one for each frequency
  std::vector<double> long_factors = {};
  friend bool operator==(const RopeSpec& a, const RopeSpec& b) = default;

  // Whether a text's length decides how its positions turn.
  bool by_length() const { return type == RopeType::kDynamic || type == RopeType::kLongrope; }
  // What that multiplies scores by.
  double ScoreFactor() const;
  // Dims of a head of `head_dim` that are turned; even.
  int64_t RotatedDims(int64_t head_dim) const;
};

// 0.1 ln(scale) + 1: how much YaRN sharpens the scores of a stretched context.
double YarnSharpening(double scale, double weight);

// The angle of one position for each pair of dims, in fp32 as transformers computes it, for a text
// of `length` tokens, which matters to types that go by_length().
std::vector<float> RopeFrequencies(const RopeSpec& spec, int64_t head_dim, int64_t length);

}  // namespace keel::model
