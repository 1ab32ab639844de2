// RunState: what a run must remember beside weights and optimizer, as the `extra` documents of a
// checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "checkpoint/format/contents.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

struct RunState {
  int64_t step = 0;              // finished steps, skipped ones included
  int64_t optimizer_steps = 0;   // applied updates: Adam's t
  int64_t samples_consumed = 0;  // over all ranks and epochs: the position in the data
  int64_t tokens_consumed = 0;
  int64_t skipped_steps = 0;
  int64_t consecutive_skips = 0;
  // Of the reference model's weights (weights_digest.h); 0 without one, or where it is not known.
  uint64_t ref_digest = 0;
};

// Which data and order the position refers to.
struct DataIdentity {
  std::string digest;  // of the training set
  int64_t samples = 0;
  int64_t seed = 0;
  bool shuffle = true;
  // Of the tokenizer, in hexadecimal; "" where rows bring their ids, and of checkpoints from before
  // it was written down: nothing is said against those.
  std::string tokenizer = "";
  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

// What else a run read, by what it is: {"content of data.val_files": "12 samples with digest ..."}.
using ReadContents = std::map<std::string, std::string>;

// trainer_state.json and data_state.json; see docs/formats/checkpoint.md.
std::string TrainerStateJson(const RunState& state);
std::string DataStateJson(const RunState& state, const DataIdentity& identity,
                          const ReadContents& contents = {});
// The contents that data_state.json names; none in checkpoints from before they were written down.
// kInvalidData.
Result<ReadContents> ContentsOf(const std::string& data_state);
// Both back, of the checkpoint of `step`. kInvalidData names the file and key of a number that is
// missing, that no run comes to, or that contradicts another one; kConfig when the data are not
// those of the checkpoint.
Result<RunState> ParseRunState(const std::string& trainer_state, const std::string& data_state,
                               const DataIdentity& identity, int64_t step);

// RunState::optimizer_steps alone, which goes with the moments where nothing else is taken.
Result<int64_t> OptimizerStepsOf(const std::string& trainer_state);
// Whether a document that says how many updates made an optimizer's moments is one of `extra`: not
// where the moments are saved without that.
inline bool BelongsToExtra(const checkpoint::Contents& saved) {
  return saved.extra || !saved.optimizer;
}
// A count in such a document: 0 to kMostCounted, which no run comes to and which leaves room to
// add. kInvalidData names `where`, the key and the number.
inline constexpr int64_t kMostCounted = 1'000'000'000'000'000;
Result<int64_t> GetCount(const Json& json, const char* key, const char* where);

// A digest in such a document: 16 hexadecimal digits. kInvalidData names `where` and the key.
Result<uint64_t> GetHex64(const Json& json, const char* key, const char* where);

}  // namespace keel::trainer
