// SampleStream: rank 0's part in the samples that a split run trains on: what they are, what a
// checkpoint holds of them, which weights may choose their tokens, and how old these were.
//
// Over the desk, whose stream kTrain it is. Used from the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/status.h"
#include "trainer/config/config.h"
#include "trainer/desk/desk.h"
#include "trainer/desk/schedule.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/generation/run_samples.h"

namespace keel::trainer::rl {

class SampleStream {
 public:
  // All must outlive this.
  SampleStream(desk::Desk& desk, const AsyncSection& options, Logger& log)
      : desk_(desk), options_(options), log_(log) {}

  // What a checkpoint holds (rollout/ledger.bin), before Open; `changed`: what its samples depend
  // on and is not as it was, so that they are none of this run's. kInvalidData: it is no ledger.
  Status Restore(const std::string& ledger, std::vector<std::string> changed);
  bool open() const { return desk_.Has(desk::Stream::kTrain); }
  std::string LedgerBytes() const;
  // From here on that is the one from before the last step's Take: the step has not happened.
  void Leave() {
    left_ = true;
    taken_by_.reset();
  }

  // Workers begin. What was restored goes on where the run's settings allow it; else it is
  // generated again, with a warning that counts it. kConfig: a schedule is not of this run.
  Status Open(const RunSamples& samples, PromptAt prompts);
  // The batch of `step` that is ready; `more`: a further one of the same step. `may_be_left`:
  // before the step's end. kConfig and kDataLoss: it is not what the replayed schedule says.
  Result<std::vector<Response>> Take(int64_t step, bool more, bool may_be_left);
  // The step that took last has happened, and its schedule is recorded: not before, so that there
  // is no file of a step that was left, or that its process did not live to do.
  void StepDone();
  void AddMetrics(StepLine* metrics);

 private:
  Status MakeSchedule(desk::DeskOptions* options, int64_t first);
  void NoteAges(const desk::Desk::Batch& batch);

  desk::Desk& desk_;
  const AsyncSection& options_;
  Logger& log_;
  std::optional<desk::Ledger> before_step_;  // of a step that may be left after its Take
  bool left_ = false;
  std::optional<desk::Ledger> restored_;
  std::vector<std::string> changed_;
  std::shared_ptr<const desk::RecordedSchedule> replayed_;
  // Of the responses of the last step: how many steps' updates the weights of their tokens lacked.
  struct Ages {
    double tokens = 0, sum = 0;
    int64_t most = 0, responses = 0, partial = 0, most_spans = 0;
  };
  Ages ages_;
  std::vector<desk::Recorded> taken_;              // by the present step
  std::optional<int64_t> taken_by_;                // its number, until it is done
  double up_s_ = 0, idle_s_ = 0, idle_ratio_ = 0;  // of workers, when they were looked at last
  int64_t files_ = 0, lost_ = 0;                   // that were to be recorded, and could not be
};

}  // namespace keel::trainer::rl
