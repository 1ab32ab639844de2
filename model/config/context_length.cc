#include "model/config/context_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "model/config/config_reader.h"
#include "model/config/family_table.h"

namespace keel::model {

namespace {

int64_t Stretched(int64_t positions, double factor) {
  const double product = static_cast<double>(positions) * factor;
  return product >= static_cast<double>(kMostPositions) ? kMostPositions
                                                        : static_cast<int64_t>(product);
}

ContextLength AsSaid(const HfConfig& config) {
  return {config.max_position_embeddings,
          fmt::format("the model's max_position_embeddings is {}", config.max_position_embeddings)};
}

}  // namespace

ContextLength LongestTrained(const HfConfig& config) {
  ContextLength said = AsSaid(config);
  const RopeSpec& rope = config.rope;
  if (FamilyOf(config.family).counts_stretched) return said;
  int64_t original = 0;
  std::string_view key;
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kLlama3:
    case RopeType::kLongrope:
      return said;
    case RopeType::kLinear:
    case RopeType::kDynamic:
      original = config.max_position_embeddings;
      key = "max_position_embeddings";
      break;
    case RopeType::kYarn:
      original = rope.original_positions;
      key = "original_max_position_embeddings";
      break;
  }
  const int64_t tokens = Stretched(original, rope.factor);
  if (tokens <= said.tokens) return said;
  return {tokens, fmt::format("the model's context is {}: {} {} times the factor {} of its "
                              "rope_type {}",
                              tokens, key, original, rope.factor,
                              kRopeTypeNames[static_cast<size_t>(rope.type)])};
}

ContextLength LongestGenerated(const HfConfig& config) {
  if (config.rope.type != RopeType::kDynamic) return LongestTrained(config);
  ContextLength said = AsSaid(config);
  said.reason += ", beyond which its rope_type dynamic generates nothing";
  return said;
}

}  // namespace keel::model
