// JobConnection: a rank finds the others of its job: the store, what all must have alike, the
// device that all agree on, the process groups; and at the end, who hangs and how all part.
//
// Owns the job's store and groups. Used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "checkpoint/base/coordinator.h"
#include "common/log.h"
#include "parallel/groups/context.h"
#include "parallel/groups/hang_report.h"
#include "trainer/run/job.h"
#include "trainer/run/rank_agreement.h"
#include "trainer/run/store_coordinator.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer {

class JobConnection {
 public:
  // Chooses the device, as far as this rank can. Not collective. Throws Error(kUnavailable) when it
  // is not there. Both must outlive this.
  JobConnection(const TrainerInputs& inputs, Logger& log);

  // This rank's job, which Connect does not touch: whoever connects tells it (Job::Attach).
  Job MakeJob() const {
    return Job(
        {CommonOf(inputs_.loaded.config), inputs_.env, inputs_.stop_requested, inputs_.status},
        device_, log_);
  }
  // The one of this rank until Connect, then the one agreed on. Not collective.
  at::Device device() const { return device_; }
  std::chrono::milliseconds deadline() const { return deadline_; }  // of waits for a peer

  // Store, then process groups. First of all the ranks compare what they were started with, `facts`
  // among it: Error(kConfig) on all of them where that differs. Then they agree on the kind of
  // device, which is the CPU where one of them has no GPU. Collective over all ranks, as all that
  // follows unless it says otherwise.
  void Connect(SharedFacts facts);
  parallel::ParallelContext& context() { return *context_; }
  checkpoint::Coordinator& coordinator() { return *coordinator_; }
  // A group of all ranks in order that carries host memory, where context().world() does not; null
  // where it does. Of many ranks those connect that have something for each other. To be shut down
  // when it has served.
  std::unique_ptr<parallel::ProcessGroup> MakeHostGroup(const char* name) const;

  // All ranks leave together.
  void Leave();
  // What the run ends on: `error`, or what was behind it on a device whose groups are lost, where a
  // host reads what is of no value and stumbles over it. Not collective.
  Status CauseOf(const std::exception& error) const;
  // The run ends on `error`, which may be that a peer hangs: what the ranks find out about which
  // one it is, to be added to the message; "" where there is nothing to say. Not collective.
  std::string WhoHangs(const std::exception& error) const;

 private:
  const TrainerInputs& inputs_;
  Logger& log_;
  const std::string offer_;  // what it could compute on: see parallel/groups/device_choice.h
  at::Device device_;
  std::chrono::milliseconds deadline_;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::HangReport> hang_report_;
  std::unique_ptr<parallel::ParallelContext> context_;
  std::unique_ptr<StoreCoordinator> coordinator_;
  bool all_left_ = false;  // the ranks have parted: none waits for another
};

}  // namespace keel::trainer
