// How a config.json spells RopeSpec. Torch-free.
#pragma once

#include "common/json.h"
#include "model/config/config_reader.h"
#include "model/config/rope_spec.h"

namespace keel::model {

// What stands around the map that is read.
struct RopeContext {
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // 0: not said
  double theta = 10000;       // where the map has none
  bool partial = false;  // whether the family turns a part of a head's dims where it is said so
  double rotated = 1;    // where the map says nothing
  // Of Phi-3, which has it outside, whatever the map says; 0: in the map.
  int64_t original_positions = 0;
  // Of a family whose layers have two rotations: transformers does not look at `truncate` there.
  bool one_of_two = false;
  bool latent = false;          // see RopeSpec::sharpened_scores
  bool scaled_queries = false;  // see RopeSpec::query_beta: the map must say it
};

// One rope_parameters or rope_scaling map, v4 or v5. Problems go to `reader`; unknown types, and
// keys of a type that are missing, are refused by name.
RopeSpec ReadRopeMap(const Json& map, const RopeContext& context, ConfigReader& reader);

// rope_parameters {rope_type, rope_theta, ...} as v5 writes it, or rope_theta and rope_scaling
// {rope_type or type, ...} as v4 does; one for all layers.
RopeSpec ReadRope(ConfigReader& reader, RopeContext context);

// {rope_type, ...} without the theta: v4's rope_scaling. Null of kDefault.
Json RopeScalingJson(const RopeSpec& spec);

// {rope_type, rope_theta, ...}: v5's rope_parameters.
Json RopeParametersJson(const RopeSpec& spec);

// Different texts of different specs; of kDefault with all dims turned "theta N".
std::string RopeText(const RopeSpec& spec);

}  // namespace keel::model
