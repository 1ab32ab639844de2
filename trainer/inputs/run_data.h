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

// What reading the files of `key` has met, with the key where one of them is not there.
Status NamingFiles(const Status& status, const std::string& key,
                   const std::vector<std::string>& files);

// From their files, or the one from the other. `load`: Result<Set> of a list of files.
template <typename Set, typename Load>
Result<RunData<Set>> LoadBoth(const Config& config, const Load& load) {
  RunData<Set> data;
  const auto take = [&](const char* key, const std::vector<std::string>& files, Set* set) {
    auto loaded = load(files);
    if (!loaded.ok()) return NamingFiles(loaded.status(), key, files);
    *set = std::move(loaded).value();
    return Status::Ok();
  };
  const DataSection& d = config.data;
  KEEL_RETURN_IF_ERROR(take(d.train_files.empty() ? "data.sources" : "data.train_files",
                            d.train_files, &data.train));
  if (!d.val_files.empty()) KEEL_RETURN_IF_ERROR(take("data.val_files", d.val_files, &data.val));
  if (config.data.val_split > 0)
    data.val =
        data.train.SplitOff(config.data.val_split, static_cast<uint64_t>(config.trainer.seed));
  KEEL_RETURN_IF_ERROR(CheckSizes(config, data.train.size(), data.val.size()));
  return data;
}

}  // namespace keel::trainer
