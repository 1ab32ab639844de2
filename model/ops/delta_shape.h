// DeltaShape: the heads of a layer with the gated delta rule (delta_rule.h) on one rank, and what a
// sequence has in such a layer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace keel::model {

// This rank's heads. Key head h serves the value heads from h * per_key() on.
struct DeltaShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t taps = 0;  // of the convolution
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // queries, keys and values
  int64_t per_key() const { return value_heads / key_heads; }

  // What a sequence has in the layer: the state [value_heads, key_dim, value_dim] fp32, of so many
  // values, and the last inputs of the convolution, [inputs, channels] in the model's dtype.
  int64_t state_size() const { return value_heads * key_dim * value_dim; }
  int64_t inputs() const { return taps > 0 ? taps - 1 : 0; }
  int64_t bytes_per_sequence(at::ScalarType dtype) const {
    return state_size() * int64_t{sizeof(float)} +
           inputs() * channels() * static_cast<int64_t>(at::elementSize(dtype));
  }
};

}  // namespace keel::model
