// The weights of a Hugging Face directory, or of adapters as PEFT writes them. Torch-free.
#pragma once

#include <string>

#include "checkpoint/hf/hf_model_dir.h"
#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/shard_table.h"
#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"

namespace keel::trainer {

// A digest by which directories with other weights are told apart without reading all of them: of
// each file its size, its beginning, which says what is where, and pages all over it. Two models of
// which one was trained on from the other differ in nearly every page.
Result<std::string> WeightsFingerprint(const std::string& directory);

// Fills the views of `table`, a part of a model of this configuration and head, from the weights of
// a directory, converting to the table's dtype. They must be the whole model's and no other's
// (checkpoint/hf/hf_check.h), and finite; what the directory may lack of them keeps its values.
Status ImportWeights(const std::string& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table);
// The same of a directory that is open.
Status ImportWeights(FileSystem& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table);

// The same of adapters beside a model of this configuration, which are all of a directory's
// adapter_model.safetensors.
Status ImportAdapters(const std::string& directory, const model::HfConfig& config,
                      const ShardTable& table);
// Opens these, checked.
Result<checkpoint::HfModelDir> OpenAdapterWeights(const FileSystem& fs,
                                                  const model::HfConfig& config);
// A digest of all of that file.
Result<std::string> AdapterFingerprint(const std::string& directory);

}  // namespace keel::trainer
