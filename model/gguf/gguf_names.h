// What the tensors of a GGUF file are called in a Hugging Face model, and how their rows lie there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/gguf/gguf_config.h"

namespace keel::model {

struct HfPlace {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  // Rows of a head whose two halves GGUF has mixed, row i of the first with row i of the second:
  // Llama's q and k, for another order of the rotated pairs. 0: as they are.
  int64_t mixed_head_rows = 0;
  bool one_added = false;  // Gemma's norms, of which GGUF has 1 + weight
  bool router = false;     // float32 in files of any type, as norms are
  bool one_row = false;    // a matrix of one row, which is a vector in some files
  int64_t expert = -1;     // of a tensor in which all of a layer's lie one behind the other
};

// Where its values go: one place, or one an expert of a stack; none for factors of a rotation,
// which ReadGgufConfig makes keys of. kInvalidData for a tensor that no Hugging Face model of this
// family has a place for.
Result<std::vector<HfPlace>> HfPlacesOf(const GgufTensor& tensor, const GgufConfig& config,
                                        std::string_view where);

// The part of the tensor that is the place's.
GgufTensor PartAt(const HfPlace& place, const GgufTensor& tensor);

// Which row of the GGUF tensor is row `row` of Hugging Face's.
int64_t GgufRow(const HfPlace& place, int64_t row);

}  // namespace keel::model
