// Dataset: all samples of a run, tokenized once at start, the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/hash.h"
#include "common/status.h"
#include "trainer/data/row_reader.h"
#include "trainer/data/truncation.h"

namespace keel::trainer {

struct DatasetOptions {
  bool sft = false;          // a row is a sample, and its answers alone are learnt
  int64_t max_length = 512;  // positions of a sample's inputs
  Truncation truncation = Truncation::kError;  // of SFT rows
  int64_t vocab_size = 0;                      // of the model: larger ids are refused
  RowKeys keys;
};

// Sample i: tokens t_0 … t_n; inputs t_0 … t_{n-1} predict t_1 … t_n where `learn` is set.
struct Sample {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> learn;  // by token; the first is never a target
  int64_t id = 0;                  // its place among all samples of the files
};

// Pre-training: all rows one after another, cut into samples of max_length inputs that share no
// target; a last, shorter one is kept. Memory: five bytes a token.
class Dataset {
 public:
  static Result<Dataset> Load(const std::vector<std::string>& files, const DatasetOptions& options,
                              const TextRules& rules);
  // Moves a share of the samples, chosen by hash of (seed, id), into a set of its own.
  Dataset SplitOff(double share, uint64_t seed);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  Sample Get(int64_t index) const;
  int64_t targets(int64_t index) const { return samples_[static_cast<size_t>(index)].targets; }
  int64_t inputs(int64_t index) const { return samples_[static_cast<size_t>(index)].length - 1; }
  int64_t skipped_rows() const { return skipped_rows_; }
  // Returns what of the files was not read, a sentence a file.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The digest of tokens, masks and cuts: tells whether a resumed run has the same data.
  const Digest128& digest() const { return digest_; }

 private:
  struct Entry {
    int64_t begin;    // of its tokens
    int64_t length;   // tokens
    int64_t targets;  // learnt ones but the first
    int64_t id;
  };
  void Cut(int64_t begin, int64_t end, int64_t max_length, bool sft);
  void Seal();

  std::vector<int32_t> tokens_;
  std::vector<uint8_t> learn_;
  std::vector<Entry> samples_;
  int64_t skipped_rows_ = 0;
  std::vector<std::string> warnings_;
  Digest128 digest_;
};

}  // namespace keel::trainer
