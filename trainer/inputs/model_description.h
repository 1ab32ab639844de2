// What a run knows of its model before any weight is read. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "common/tensors/dtype.h"
#include "model/config/hf_config.h"

namespace keel::trainer {

// The model that adapters were trained beside: the digest of its values (WeightsDigest) in the type
// that the run had them in. adapter_base.json, in a checkpoint and in what is exported of it.
struct AdapterBase {
  static constexpr const char* kName = "adapter_base.json";
  static constexpr const char* kPath = "actor/huggingface/adapter_base.json";
  uint64_t digest = 0;
  DType dtype = DType::kF32;
};

struct ModelDescription {
  model::HfConfig config;
  std::string directory;  // with weights; empty: random weights
  // With adapters that training goes on from; empty: new ones, where config has some.
  std::string adapter_directory;
  std::optional<AdapterBase> adapter_base;  // beside which those were trained, where they say it
  // config.json and, from a directory, the tokenizer's files: what actor/huggingface/ of a
  // checkpoint holds.
  std::vector<checkpoint::Document> documents;
  std::string tokenizer_digest;  // in hex; empty without one
  std::vector<std::string> warnings;
};

}  // namespace keel::trainer
