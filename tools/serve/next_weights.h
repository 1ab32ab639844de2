// NextWeights: the weights of a run's next checkpoint, read beside what is served, on every rank.
//
// Agree and Adopt are collective over the model's ranks, as the orders of the first one say (see
// serve_orders.h). Used from the engine's thread; the reading has a thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "rollout/engine.h"
#include "tools/inference/inference_model.h"

namespace keel::tools {

class NextWeights {
 public:
  // Both must outlive this.
  NextWeights(InferenceModel& model, rollout::Engine& engine) : model_(model), engine_(engine) {}
  ~NextWeights();  // waits for what is being read

  // Begins to read `step`; what was read before is dropped.
  void Read(const std::string& step);
  // How the reading went, once it has ended on every rank. Not ok on one: on all, which drop it.
  std::optional<Status> Agree();
  // After an Agree that was ok, and while the engine is idle.
  void Adopt();

 private:
  void Drop();

  InferenceModel& model_;
  rollout::Engine& engine_;
  std::unique_ptr<WeightTwin> twin_;
  std::thread thread_;
  std::atomic<bool> done_{false};
  Status status_;
};

}  // namespace keel::tools
