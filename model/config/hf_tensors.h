// The tensors that a decoder's weights are in a Hugging Face directory. Torch-free; decoder.h
// declares the same, and a test compares the two.
#pragma once

#include <string_view>

#include "common/tensors/model_tensors.h"
#include "model/config/hf_config.h"

namespace keel::model {

// kValue: a critic, `score.weight` [1, hidden] in place of the vocabulary's head.
enum class Head { kVocabulary, kValue };

// Canonical names and shapes, as F32. A head of vocabulary that is tied may be there as a copy; a
// value head may lack `score.weight`, as a language model does, and have a vocabulary's head, which
// it does not use.
ModelTensors TensorsOf(const HfConfig& config, Head head);

// Whether a tensor of these is one that nobody trains, and that is fp32 whatever the model's type.
bool IsConstant(const HfConfig& config, std::string_view tensor);

}  // namespace keel::model
