// RunInputs: what a run reads before it connects to anything: its model's shape and tokenizer, and
// its data. `keel config validate` reads the same. Torch-free, and not collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/config/config.h"

namespace keel::trainer {

// Folders, model and data of the configuration's task, and the headers of weights.
struct InputReport {
  int64_t train_samples = 0;
  int64_t val_samples = 0;
  int64_t skipped_rows = 0;
  int64_t parameters = 0;
  std::vector<std::string> warnings;
};
Result<InputReport> CheckRunInputs(const Config& config);

}  // namespace keel::trainer
