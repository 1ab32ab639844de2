// What algorithm.rollout_correction asks for, parsed from its texts. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::trainer::rl {

enum class ImportanceLevel { kOff, kToken, kSequence };

// One criterion of rejection: "seq_mean_k3" and its bounds. For k1 the bounds are of the ratio
// rollout / trainer, for the others `upper` is of the estimate itself.
struct RejectionRule {
  std::string name;
  double lower = 0;
  double upper = 0;
};

struct RolloutCorrectionOptions {
  ImportanceLevel level = ImportanceLevel::kOff;
  double upper = 2;             // of the weights
  std::optional<double> lower;  // given: weights outside become 0; else larger ones are cut
  bool batch_normalize = false;
  std::vector<RejectionRule> rules;  // all must hold

  // From the configuration's texts; "" for null. kConfig with every problem.
  static Result<RolloutCorrectionOptions> Parse(const std::string& rollout_is,
                                                const std::string& rollout_is_threshold,
                                                bool batch_normalize, const std::string& rollout_rs,
                                                const std::string& rollout_rs_threshold);
};

}  // namespace keel::trainer::rl
