// PartTimes: how long the parts of a step take.
//
// A host is far ahead of its GPU: its clock would give the forward the time of its launches, and
// the rest to whatever first waits. So on a GPU a part is what its stream does from one mark to
// another, read when the host has waited for it anyhow. On a CPU it is the clock's. Used from one
// thread.
#pragma once

#include <memory>
#include <vector>

#include "common/clock.h"
#include "parallel/groups/cuda_module.h"

namespace keel::trainer {

class PartTimes {
 public:
  explicit PartTimes(parallel::CudaModule* cuda) : cuda_(cuda) {}

  // A part begins; what came since the last one is of none.
  void Begin() {
    if (cuda_ != nullptr) last_ = cuda_->Mark();
    watch_.Lap();
  }
  // It ends here, and the next begins. `seconds` is written now, or by Read, until when it must be
  // there.
  void End(double* seconds) {
    *seconds = watch_.Lap();
    if (cuda_ == nullptr) return;
    const std::shared_ptr<const parallel::StreamMoment> now = cuda_->Mark();
    parts_.push_back({seconds, last_, now});
    last_ = now;
  }
  // Waits for the end of the last part.
  Status Read() {
    for (const Part& part : parts_) {
      KEEL_ASSIGN_OR_RETURN(*part.seconds, cuda_->SecondsBetween(*part.from, *part.to));
    }
    parts_.clear();
    return Status::Ok();
  }

 private:
  struct Part {
    double* seconds;
    std::shared_ptr<const parallel::StreamMoment> from, to;
  };
  parallel::CudaModule* cuda_;  // null: on a CPU
  Stopwatch watch_;
  std::shared_ptr<const parallel::StreamMoment> last_;
  std::vector<Part> parts_;
};

}  // namespace keel::trainer
