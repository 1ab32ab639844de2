// InferenceModel: a model that only computes, on the ranks of one TP group, for keel score,
// generate, chat and serve.
//
// On a GPU, or on the host.
// From what named_model.h reads, whatever layout saved it. Several TP
// groups have a copy of it each. Collective over the ranks of its environment, each of which makes
// one. Used from one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/process_group.h"
#include "parallel/launch_env.h"
#include "parallel/store/store.h"
#include "rollout/engine.h"
#include "tools/inference/model_text.h"
#include "tools/inference/named_model.h"
#include "tools/inference/prompt_relay.h"
#include "trainer/run/device_agreement.h"
#include "trainer/run/rank_agreement.h"

namespace keel::tools {

struct InferenceOptions {
  std::string path;            // see NamedModel
  std::string base = {};       // likewise
  std::string dtype;           // the name of a WeightDtype; "": that of the weights
  std::string device = "cpu";  // see trainer::ParseDeviceWish
  parallel::LaunchEnv env;
  int64_t tp = 0;           // ranks that share a copy of the model; 0: all
  bool todays_date = true;  // for templates that ask; else the same one always
  int64_t copies = 1;       // of the weights, that the memory must hold
  // Instead of `path`, on the first rank: a step's directory. Called again with what was wrong with
  // the last one, until its weights can be read; throws when there is none.
  std::function<std::string(const Status& last)> choose = {};
  trainer::SharedFacts asked = {};  // by the command: of all ranks alike, as the model is
};

// Memory for the weights of another step of the same model: see InferenceModel::MakeTwin.
class WeightTwin {
 public:
  // Fills it with this rank's part, verified. Not collective; on any thread, one at a time.
  Status Read(const std::string& step);

 private:
  friend class InferenceModel;
  std::unique_ptr<model::Decoder> decoder_;
  parallel::Seat seat_;
  std::unique_ptr<parallel::WeightStore> weights_;  // in the type that the step has
};

class InferenceModel {
 public:
  // Throws keel::Error.
  explicit InferenceModel(const InferenceOptions& options);
  ~InferenceModel();

  // Reads the input and writes the output; the others do as the relay says.
  bool leads() const { return group_->rank() == 0; }
  int ranks() const { return group_->size(); }  // of this copy of the model
  // The copies, and which one is this rank's.
  int replica() const { return env_.rank / group_->size(); }
  int replicas() const { return env_.world_size / group_->size(); }
  // Throws kConfig on all ranks of all copies, with what differs, unless they have the same facts.
  // Once for each `topic`.
  void Agree(const std::string& topic, const trainer::SharedFacts& facts);
  // Waits for all ranks of all copies, however long they take.
  void WaitForAll();
  const NamedModel& named() const { return named_; }
  const trainer::ModelSource& source() const { return named_.source; }
  PromptRelay& relay() { return *relay_; }
  const model::HfConfig& config() const { return source().config; }
  // Of the weights, as they compute.
  std::string dtype() const { return dtype_ == at::kBFloat16 ? "bfloat16" : "float32"; }
  // The ids that end a text: those that config.json and generation_config.json name, and no others.
  const std::vector<int64_t>& stop_ids() const { return source().stop_ids; }
  const ModelText& text() const { return text_; }
  // With the model's tokenizer and ends of text. This must outlive it.
  rollout::Engine MakeEngine(rollout::EngineOptions options);
  // Host memory for other weights, which may be filled while these are used.
  std::unique_ptr<WeightTwin> MakeTwin() const;
  // Between two steps of the engine, which is then told of it: the weights are those of `twin`.
  void Adopt(const WeightTwin& twin);
  // All ranks leave together, at the end of all work.
  void Leave();

 private:
  // What `path` is, and whether this machine holds it.
  Status Examine(const std::string& path, const InferenceOptions& options, int tp);
  // The program, what was asked for, and the model: other weights would fit as well.
  trainer::SharedFacts Facts(const InferenceOptions& options) const;
  void MakeDecoder();
  void Connect(const trainer::DeviceWish& wish, int tp);
  void MakeGroups(int tp);
  Status LoadWeights();
  parallel::Seat SeatHere() const;
  model::DecoderOptions DecoderSettings(const at::Device& device) const;

  NamedModel named_;
  ModelText text_{named_.source};
  parallel::LaunchEnv env_;
  at::Device device_ = at::kCPU;
  at::ScalarType dtype_ = at::kFloat;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::ProcessGroup> group_, relay_group_, all_;
  std::unique_ptr<PromptRelay> relay_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
};

}  // namespace keel::tools
