// Training and validation data, as every task loads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/config/context_length.h"
#include "trainer/config/config.h"
#include "trainer/data/token_input.h"

namespace keel::trainer {

// Training and validation data of a task. `Set`: Dataset, PreferenceSet or PromptSet.
template <typename Set>
struct RunData {
  Set train;
  Set val;
  // Returns what of the files was not read.
  std::vector<std::string> Warnings() const {
    std::vector<std::string> all = train.warnings();
    all.insert(all.end(), val.warnings().begin(), val.warnings().end());
    return all;
  }
};

// Where rows are kept as shards, and who makes them.
TokenCache CacheOf(const Config& config);
// kConfig, naming `keys`, when the model's texts are shorter.
Status CheckPositions(const model::ContextLength& longest, int64_t positions,
                      const std::string& keys);
// kInvalidData when a split of the data leaves one of the two empty.
Status CheckSizes(const Config& config, int64_t train, int64_t val);
// What there is to say of a batch that holds some of `train` samples more than once; or "".
std::string BatchWarning(const Config& config, int64_t train);

// From their files, or the one from the other. `load`: Result<Set> of a list of files.
template <typename Set, typename Load>
Result<RunData<Set>> LoadBoth(const Config& config, const Load& load) {
  RunData<Set> data;
  KEEL_ASSIGN_OR_RETURN(data.train, load(config.data.train_files));
  if (!config.data.val_files.empty()) {
    KEEL_ASSIGN_OR_RETURN(data.val, load(config.data.val_files));
  }
  if (config.data.val_split > 0)
    data.val =
        data.train.SplitOff(config.data.val_split, static_cast<uint64_t>(config.trainer.seed));
  KEEL_RETURN_IF_ERROR(CheckSizes(config, data.train.size(), data.val.size()));
  return data;
}

}  // namespace keel::trainer
