// DecodeGraphs: steps of generation that are recorded once, up to their hidden states, and replayed
// with one launch, where a step is a token of each sequence.
//
// A launch costs the host some microseconds, and a step of a small batch is hundreds of them, which
// the device ends before the next one comes (CUDA graphs; Kwon et al. 2023). A recording is of a
// number of sequences and of the length of the longest, both rounded up: sequences that nobody has
// fill it up, and write nothing. It is of addresses: where weights, tables, memory or the cache
// have moved, all are recorded anew. Used from one thread, which waits for the device to record.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder.h"
#include "parallel/groups/cuda_module.h"
#include "rollout/kv_cache.h"

namespace keel::rollout {

class DecodeGraphs {
 public:
  // Both must outlive it. `longest`: tokens of a text at most. `warn`, which may be null, is told
  // once if the device cannot record, after which nothing is replayed.
  DecodeGraphs(model::Decoder& model, const KvCache& cache, int64_t longest,
               std::function<void(const std::string&)> warn)
      : model_(model), cache_(cache), longest_(longest), warn_(std::move(warn)) {}

  // Decoder::Decode of the batch, good until the next call; nothing where that is not to be
  // replayed: prompts among it, more sequences than kMostSequences, a model whose step the host
  // takes part in (Decoder::DecodesWithoutHost), a host, or a device that could not record.
  std::optional<at::Tensor> Decode(const model::DecodeBatch& batch);

  int64_t recorded() const { return recorded_; }  // in all

  static constexpr int64_t kMostSequences = 512;
  // The least number from `n` on that is recorded: to at most a quarter more.
  static int64_t Rounded(int64_t n);

 private:
  struct Graph {
    at::Tensor numbers;  // of the batch (model::DecodeNumbers)
    at::Tensor hidden;
    std::unique_ptr<parallel::Recording> recording;
  };
  using Key = std::pair<int64_t, int64_t>;  // sequences, length of the longest

  bool IsToBeReplayed(const model::DecodeBatch& batch) const;
  std::vector<const void*> Addresses() const;
  // Nothing where the device could not.
  Graph* Record(const Key& key, const model::DecodeBatch& batch,
                const model::DecodeNumbers& numbers);

  model::Decoder& model_;
  const KvCache& cache_;
  const int64_t longest_;
  const std::function<void(const std::string&)> warn_;
  std::vector<const void*> addresses_;  // of what graphs_ were recorded with
  std::map<Key, Graph> graphs_;
  int64_t recorded_ = 0;
  bool gave_up_ = false;
};

}  // namespace keel::rollout
