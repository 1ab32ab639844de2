// A whole Hugging Face model in one process, for keel score and keel generate.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/json.h"
#include "model/decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "parallel/process_group.h"
#include "parallel/weight_store.h"
#include "rollout/engine.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

class HfInference {
 public:
  // Throws keel::Error. `dtype`: the name of a WeightDtype, or ""; "" takes the directory's.
  HfInference(const std::string& directory, const std::string& dtype);

  model::Decoder& decoder() { return *decoder_; }
  const model::HfConfig& config() const { return source_.config; }
  // The ids that end a text: those that config.json and generation_config.json name, and no others.
  const std::vector<int64_t>& stop_ids() const { return source_.stop_ids; }
  // The model's own; null when the rows must bring input_ids.
  const model::Tokenizer* tokenizer() const { return source_.tokenizer.get(); }
  const trainer::TextRules& text() const { return source_.text; }
  // With the model's tokenizer and ends of text. This must outlive it.
  rollout::Engine MakeEngine(rollout::EngineOptions options);

 private:
  trainer::ModelSource source_;
  std::unique_ptr<parallel::ProcessGroup> group_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
};

// A row of an input file, or of standard input ("-"): its JSON and its token ids (from input_ids
// without padding, prompt or text).
struct InputRow {
  Json json;
  std::vector<int32_t> ids;
  std::string where;  // "prompts.jsonl:3"
};
std::vector<InputRow> ReadInputRows(const std::string& path, const HfInference& model);

}  // namespace keel::tools
