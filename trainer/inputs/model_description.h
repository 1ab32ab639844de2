// What a run knows of its model before any weight is read. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "model/config/hf_config.h"
#include "trainer/inputs/adapter_files.h"

namespace keel::trainer {

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
