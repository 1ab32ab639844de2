// RoleEngines: the models of a run of RL: the actor, which learns from rewards, and where the
// configuration wants them the reference that it stays near to and the critic that says values.
//
// Owned by the RL task. Used from the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_source.h"
#include "trainer/rl/learn/experience.h"
#include "trainer/run/job.h"
#include "trainer/run/task.h"

namespace keel::trainer::rl {

class RoleEngines {
 public:
  // Made with the weights that a run begins with, and idle: what may leave the device has. `actor`:
  // how the actor is made, and the others but for what their own sections say. `config` and `job`
  // must outlive this. Throws keel::Error where weights cannot be read. Collective over all ranks.
  RoleEngines(const Config& config, const ModelSource& source, const TrainEngineOptions& actor,
              Job& job);

  TrainEngine& actor() { return *actor_; }
  // Null without one.
  TrainEngine* critic() { return critic_.get(); }
  // The reference's own model, null where there is none or it is the actor without its adapters.
  Task::Reference reference() const { return {ref_.get(), ref_digest_}; }
  // As experience and updates see them: of an actor that has adapters the reference is the actor
  // itself (BaseOnly).
  Roles roles() const;
  // Those whose weights a checkpoint holds: all that change.
  std::vector<Task::Role> Saved() const;

 private:
  void BuildReference(const ModelSource& source, TrainEngineOptions options);
  void BuildCritic(const ModelSource& source, TrainEngineOptions options);

  Job& job_;
  const Config& c_;
  std::unique_ptr<TrainEngine> actor_, ref_, critic_;
  uint64_t ref_digest_ = 0;
};

}  // namespace keel::trainer::rl
