// Dataset: all samples of a run, from files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/status.h"
#include "trainer/data/data_source.h"
#include "trainer/data/rows/choices.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/data/sample_cut.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/token_input.h"

namespace keel::trainer {

struct DatasetOptions {
  bool sft = false;          // a row is a sample, and its answers alone are learnt
  int64_t max_length = 512;  // positions of a sample's inputs
  Truncation truncation = Truncation::kError;  // of SFT rows
  int64_t vocab_size = 0;                      // of the model: larger ids are refused
  RowKeys keys;
  std::optional<Packing> packing;  // nothing: none for SFT, the stream for pre-training
  TokenCache cache;
};

// Where the tokens lie is for TokenStore to know, what a sample is for SampleCut. Of each source
// there is one of both; their samples follow each other. Immutable but for SplitOff; thread-safe.
class Dataset final : public SampleSet {
 public:
  // Of one source: all rows of the files, in order.
  static Result<Dataset> Load(const std::vector<std::string>& files, const DatasetOptions& options,
                              const TextRules& rules);
  // Of several, which order() mixes.
  static Result<Dataset> LoadSources(const std::vector<DataSource>& sources,
                                     const DatasetOptions& options, const TextRules& rules);
  // Moves a share of the samples, chosen by hash of (seed, id), into a set of its own. Of one
  // source.
  Dataset SplitOff(double share, uint64_t seed);

  int64_t size() const override;
  Sample Get(int64_t index) const override;
  int64_t targets(int64_t index) const override;
  int64_t inputs(int64_t index) const override;
  int64_t id(int64_t index) const override {
    return chosen_ ? (*chosen_)[static_cast<size_t>(index)] : index;
  }
  int64_t skipped_rows() const override { return skipped_rows_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }
  // Of tokens, masks and cuts.
  const Digest128& digest() const override { return digest_; }
  const std::vector<SourceShare>& mixture() const override { return mixture_; }

 private:
  struct Source {
    SampleCut cut;
    std::shared_ptr<const MemoryTokens> memory;  // of rows that were read into memory
    std::string path;
  };
  Status Add(const std::vector<std::string>& files, const DatasetOptions& options,
             const TextRules& rules);
  void Seal();
  // The source of sample `index`, and which of its samples that is.
  std::pair<const Source*, int64_t> Find(int64_t index) const;

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<int64_t> first_ = {0};            // samples before each source, and all
  std::optional<std::vector<int64_t>> chosen_;  // of a set that was split
  std::vector<SourceShare> mixture_;
  int64_t skipped_rows_ = 0;
  std::vector<std::string> warnings_;
  Digest128 digest_;
};

}  // namespace keel::trainer
