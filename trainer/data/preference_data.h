// Pairs of a preferred and a rejected answer for DPO, and their packed batches. Torch-free.
//
// They are RowRecords (row_records.h): in the memory of each process, or on the disk and mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/status.h"
#include "trainer/data/batch.h"
#include "trainer/data/row_records.h"
#include "trainer/data/rows/choices.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/data/sample.h"
#include "trainer/data/token_input.h"

namespace keel::trainer::rl {

struct PreferenceOptions {
  int64_t max_prompt_length = 512;
  int64_t max_response_length = 512;  // tokens of an answer, the end mark included
  // What is done with rows of a longer prompt or answer: refuse, leave out, or cut; a prompt at the
  // named side, an answer always at its end.
  Truncation truncation = Truncation::kError;
  int64_t vocab_size = 0;
  std::string prompt_key = "prompt";
  std::string chosen_key = "chosen";
  std::string rejected_key = "rejected";
  TokenCache cache;
};

// Both with the prompt in front; the answers' tokens are learnt.
struct PreferencePair {
  int64_t id = 0;  // its place among all rows
  TokenRow chosen;
  TokenRow rejected;
};

// Reads JSON Lines with prompt (text or messages), chosen and rejected (text, or messages of which
// the last is the assistant's answer; any before it must be the prompt's own). Each may be a list
// of token ids instead, to which no end mark is added, or stand under prompt_input_ids,
// chosen_input_ids and rejected_input_ids with an ..._attention_mask beside it.
// Immutable but for SplitOff, and thread-safe; copies share what they hold.
class PreferenceSet {
 public:
  // Several processes may call it at once with the same cache; it is not collective.
  static Result<PreferenceSet> Load(const std::vector<std::string>& files,
                                    const PreferenceOptions& options, const TextRules& rules);
  // Moves a share of the pairs, chosen by hash of (seed, id), into a set of its own.
  PreferenceSet SplitOff(double share, uint64_t seed);

  int64_t size() const { return rows_.size(); }
  // Throws Error(kDataLoss) with the file where a shard is not what it was when it was loaded.
  PreferencePair Get(int64_t index) const;
  int64_t skipped_rows() const { return rows_.skipped_rows(); }
  // Returns what of the files was not read, a sentence a file.
  const std::vector<std::string>& warnings() const { return rows_.warnings(); }
  const Digest128& digest() const { return digest_; }

 private:
  Status Seal();

  ChosenRecords rows_;
  Digest128 digest_;
};

struct PreferenceBatch {
  std::vector<MicroBatch> microbatches;  // of this rank: chosen and rejected of a pair side by side
  // Counts of the global batch:
  int64_t pairs = 0;
  int64_t chosen_tokens = 0;
  int64_t tokens = 0;  // inputs
};

// As MakeStepBatch with pairs for samples: options.batch_size and micro_batch_size count pairs.
// What fills up a micro-batch comes after its pairs.
PreferenceBatch MakePreferenceBatch(const PreferenceSet& data,
                                    const std::function<int64_t(int64_t)>& at, int64_t cursor,
                                    int64_t count, const BatchOptions& options);

}  // namespace keel::trainer::rl
