// Generation: where a run's responses come from: the ranks that train, in turns with the training
// (colocated), or workers of their own (split_generation.h). Owned by the RL task; collective over
// all ranks that train.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "common/status.h"
#include "rollout/engine.h"
#include "rollout/sampling.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/generation/run_samples.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer::rl {

struct RolloutOrder {
  int64_t first = 0;                 // position of the run; also names the random stream
  int64_t count = 0;                 // of positions, which follow each other
  PromptAt prompt;                   // at one of them; of a validation on any thread
  int64_t n = 1;                     // responses to each
  int64_t step = 0;                  // that they are for
  rollout::SamplingParams sampling;  // of the run, or of its validation
  bool validation = false;
  bool greedy_baseline = false;  // one more to each, the likeliest: its score is their baseline
  bool texts = false;            // somebody will read them: a dump, or a vote without answers
  bool more = false;             // for a step that has filtered some of its last ones away
};

struct RolloutTimes {
  double generate_s = 0;
  double reward_s = 0;                 // waited for verifiers after the last token
  std::optional<double> tools_wait_s;  // part of generate_s, waited for tools with none to generate
  rollout::EngineStats engine;
};

class Generation {
 public:
  virtual ~Generation() = default;

  virtual std::string Description() const = 0;  // for people
  // Why a request of so many tokens can never be served, as far as these ranks know.
  virtual Status CheckLengths(int64_t prompt, int64_t response) const = 0;
  // So that a program or an address that does not work is heard of before anything is generated.
  virtual void StartVerifiers() = 0;

  // As those of RolloutModel.
  virtual WeightUpdate Update() = 0;
  virtual WeightUpdate Restore(const WeightVersion& expected) = 0;
  virtual const WeightVersion& version() const = 0;
  // The newest version of which it is known that it arrived: an older one while a push is under
  // way.
  virtual const WeightVersion& proved() const { return version(); }
  // Memory of the actor is about to change: returns once nothing reads it for an update of the
  // rollout's weights. Not collective.
  virtual void BeforeWrite(const void* /*begin*/, size_t /*bytes*/) {}
  virtual void Corrupt() {}
  virtual double Prepare() { return 0; }
  virtual double Leave() { return 0; }
  virtual void ReleaseWeights() {}

  // Once the weights are there, before the first Run. False, and so is every Await then: the run
  // was asked to stop while nobody was there who would serve it.
  virtual bool Begin(const RunSamples& /*samples*/) { return true; }
  // Waits until the first Run of a step can be served, which nothing has been handed out for.
  // False: nobody is left who would serve it, and the run was asked to stop, or gave_up().
  virtual bool Await(RolloutTimes* /*times*/) { return true; }
  // Why the last that was awaited did not come, on every rank; ok where the run was asked to stop.
  virtual const Status& gave_up() const {
    static const Status ok = Status::Ok();
    return ok;
  }
  // Responses, scored, on rank 0, which decides what becomes of them; none on the others. With text
  // and answer only where they are asked for. Throws on every rank, Error(kDataLoss) where one
  // could not be generated. Nothing, and nobody has heard of any of them then: nobody is left who
  // would generate them (see Await), or the run was asked to stop and the signal ended a tool that
  // a sample had called, or its verifier.
  virtual std::optional<std::vector<Response>> Run(const RolloutOrder& order,
                                                   RolloutTimes* times) = 0;
  // The present weights are about to change: waits until nothing needs them any more. Whoever joins
  // from here on until Update gets none. False: nobody is left who would take the new ones (see
  // Await).
  virtual bool BeforeUpdate() { return true; }
  // The step is left after its Run: from here on what AddDocuments adds is as if nothing of it had
  // been taken. False, the same on every rank, where that is not known any more.
  virtual bool LeaveStep() { return true; }
  virtual void AddMetrics(StepLine* /*metrics*/) const {}
  // All steps of the run are done, and what is to be saved is.
  virtual void Finish() {}

  // What of a checkpoint, beside the version of the weights, is needed to go on; documents are
  // written by rank 0, and restored before the first Run. `changed`: names of what samples depend
  // on and is not as it was (sample_changes.h).
  virtual void AddDocuments(std::vector<checkpoint::Document>* /*documents*/) const {}
  virtual void RestoreDocuments(const std::map<std::string, std::string>& /*documents*/,
                                const std::vector<std::string>& /*changed*/) {}
};

}  // namespace keel::trainer::rl
