// Which adapters (LoRA) stand beside a model: PEFT's adapter_config.json. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/requests.h"
#include "common/status.h"
#include "model/config/hf_config.h"
#include "trainer/inputs/model_description.h"
#include "trainer/inputs/tokenizer_fit.h"

namespace keel::trainer {

// What an adapter_config.json says, `where` it stands. What changes what is computed and Keel does
// not compute is refused by its key.
struct AdapterConfig {
  model::AdapterSpec spec;
  std::string base;            // base_model_name_or_path, as it stands there; "" where it is null
  bool names_modules = false;  // target_modules and exclude_modules are names, and no expressions
  double dropout = 0;          // lora_dropout, which Keel does not compute
};
Result<AdapterConfig> ParseAdapterConfig(std::string_view text, std::string_view where);

// The text of one, of the adapters of `config` beside the model in the directory `base`; "": beside
// random weights.
std::string AdapterConfigText(const model::HfConfig& config, const std::string& base);

Result<AdapterBase> ParseAdapterBase(std::string_view text, std::string_view where);
// That of the adapters in `directory`; nothing where no file says it.
Result<std::optional<AdapterBase>> ReadAdapterBase(const std::string& directory);
// Both files as a checkpoint has them, beside config.json.
std::vector<checkpoint::Document> AdapterDocuments(const model::HfConfig& config,
                                                   const std::string& directory,
                                                   const AdapterBase& base);

// For the log: "1081344 parameters of rank 8 learn, beside 42 weights".
std::string AdapterRemark(const model::HfConfig& config);

// Whether a directory has a tokenizer, by itself: not its settings alone.
bool HasTokenizer(const std::string& directory);
// The tokenizer, or the template, that stands beside adapters goes before their model's, but not
// before another one that is asked for.
void TakeTextBesideAdapters(const std::string& directory, TokenizerChoice* choice);

// A directory that holds both files.
bool HasAdapterFiles(const std::string& directory);
// Its adapters of a model of `base`. Their modules are those that the tensors are of; where the
// configuration lists names, the two must agree.
Result<AdapterConfig> OpenAdapters(const std::string& directory, const model::HfConfig& base);
}  // namespace keel::trainer
