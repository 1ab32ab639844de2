// OperatorProfile: libtorch's profiler (Kineto) over single steps: profile/step_<N>.rank_<R>.json
// in a run's folder, which Perfetto and chrome://tracing read.
//
// Used from the training thread, whose operators it sees, and those of the device. A file that
// cannot be written is warned of, and the run goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/log.h"

namespace keel::trainer {

class OperatorProfile {
 public:
  // Both must outlive this.
  OperatorProfile(const std::string& folder, const std::vector<int64_t>& steps, int rank,
                  Logger& log);
  ~OperatorProfile();  // drops what has begun

  void BeginStep(int64_t step);
  void EndStep(int64_t step);

 private:
  const std::string directory_;
  const std::vector<int64_t>& steps_;
  const int rank_;
  Logger& log_;
  bool running_ = false;
};

}  // namespace keel::trainer
