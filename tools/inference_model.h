// InferenceModel: a model that only computes, on the ranks of one TP group, for keel score,
// generate, chat and serve.
//
// On a GPU, or on the host.
// From a Hugging Face directory, or from a step of a run, whatever layout saved it. Collective over
// the ranks of its environment, each of which makes one. Used from one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "parallel/launch_env.h"
#include "parallel/process_group.h"
#include "parallel/store.h"
#include "parallel/weight_store.h"
#include "rollout/engine.h"
#include "tools/model_text.h"
#include "tools/prompt_relay.h"
#include "trainer/inputs/model_source.h"
#include "trainer/run/device_agreement.h"

namespace keel::tools {

struct InferenceOptions {
  std::string path;            // a Hugging Face directory, or a step's: runs/x/global_step_20
  std::string dtype;           // the name of a WeightDtype; "": that of the weights
  std::string device = "cpu";  // see trainer::ParseDeviceWish
  parallel::LaunchEnv env;
};

class InferenceModel {
 public:
  // Throws keel::Error.
  explicit InferenceModel(const InferenceOptions& options);
  ~InferenceModel();

  // Reads the input and writes the output; the others do as the relay says.
  bool leads() const { return group_->rank() == 0; }
  int ranks() const { return group_->size(); }
  PromptRelay& relay() { return *relay_; }
  const model::HfConfig& config() const { return source_.config; }
  // The ids that end a text: those that config.json and generation_config.json name, and no others.
  const std::vector<int64_t>& stop_ids() const { return source_.stop_ids; }
  const ModelText& text() const { return text_; }
  // With the model's tokenizer and ends of text. This must outlive it.
  rollout::Engine MakeEngine(rollout::EngineOptions options);
  // All ranks leave together, at the end of all work.
  void Leave();

 private:
  void Connect(const parallel::LaunchEnv& env, const trainer::DeviceWish& wish);
  void LoadWeights(const std::string& path, at::ScalarType dtype);

  trainer::ModelSource source_;
  ModelText text_{source_};
  at::Device device_ = at::kCPU;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::ProcessGroup> group_, relay_group_;
  std::unique_ptr<PromptRelay> relay_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
};

}  // namespace keel::tools
