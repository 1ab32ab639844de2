#include "rollout/decode_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "parallel/tensor/send.h"

namespace keel::rollout {

namespace {

// Lengths are of so many tokens, or of a power of two of them: with each, twice the memory for
// parts of attention.
constexpr int64_t kLeastLongest = 256;

int64_t LongestOf(const model::DecodeBatch& batch) {
  int64_t longest = 0;
  for (const model::DecodeSequence& s : batch.sequences)
    longest = std::max(longest, s.past + s.tokens);
  return longest;
}

// With sequences of nobody behind its own, so that there are `count`. `no_blocks`: of each group.
model::DecodeBatch FilledUp(model::DecodeBatch batch, int64_t count,
                            std::span<const std::vector<int32_t>> no_blocks) {
  batch.ids.resize(static_cast<size_t>(count), 0);
  batch.sequences.resize(static_cast<size_t>(count),
                         {.past = 0, .tokens = 1, .length = 1, .blocks = no_blocks});
  return batch;
}

}  // namespace

int64_t DecodeGraphs::Rounded(int64_t n) {
  const auto step = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, n - 1))) / 4;
  const int64_t unit = std::max<int64_t>(1, static_cast<int64_t>(step));
  return (n + unit - 1) / unit * unit;
}

bool DecodeGraphs::IsToBeReplayed(const model::DecodeBatch& batch) const {
  const int64_t count = std::ssize(batch.sequences);
  return !gave_up_ && cache_.keys(0).is_cuda() && count > 0 && count <= kMostSequences &&
         std::ssize(batch.ids) == count && std::ssize(batch.outputs) == count &&
         model_.DecodesWithoutHost();
}

std::vector<const void*> DecodeGraphs::Addresses() const {
  std::vector<const void*> addresses = model_.DecodeAddresses();
  for (int64_t layer = 0; layer < model_.kv_shape().layers; ++layer) {
    addresses.push_back(cache_.keys(layer).const_data_ptr());
    addresses.push_back(cache_.values(layer).const_data_ptr());
  }
  return addresses;
}

std::optional<at::Tensor> DecodeGraphs::Decode(const model::DecodeBatch& batch) {
  if (!IsToBeReplayed(batch)) return std::nullopt;
  const int64_t count = std::ssize(batch.sequences);
  const int64_t longest = LongestOf(batch);
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
  const Key key = {Rounded(count),
                   std::max(longest, std::min(longest_, std::max(kLeastLongest, power)))};
  const std::vector<std::vector<int32_t>> no_blocks(batch.sequences[0].blocks.size());
  const model::DecodeBatch whole = FilledUp(batch, key.first, no_blocks);
  const model::DecodeNumbers numbers = model_.NumbersOf(whole, cache_.block_size(), key.second);
  // A table of rotation may have grown just now.
  if (Addresses() != addresses_) graphs_.clear();
  const auto found = graphs_.find(key);
  Graph* const graph = found != graphs_.end() ? &found->second : Record(key, whole, numbers);
  if (graph == nullptr) return std::nullopt;
  // Checks that there are as many, which batches of one key have.
  graph->numbers.copy_(at::tensor(numbers.values, at::kInt), /*non_blocking=*/true);
  graph->recording->Replay();
  return graph->hidden.narrow(0, 0, count);
}

DecodeGraphs::Graph* DecodeGraphs::Record(const Key& key, const model::DecodeBatch& batch,
                                          const model::DecodeNumbers& numbers) {
  Graph graph;
  graph.numbers = parallel::SentTo(cache_.keys(0).device(), at::tensor(numbers.values, at::kInt));
  const model::DecodeInputs inputs = model_.InputsOf(numbers, graph.numbers);
  const parallel::Recording* const beside =
      graphs_.empty() ? nullptr : graphs_.begin()->second.recording.get();
  auto recording =
      ValueOrThrow(parallel::LoadCudaModule())
          ->Record(
              [&] {
                graph.hidden = model_.DecodeAll(inputs, batch.sequences, cache_, batch.arithmetic);
              },
              beside);
  if (!recording.ok()) {
    gave_up_ = true;
    graphs_.clear();
    if (warn_) {
      warn_(
          fmt::format("generation gives the GPU its steps operation by operation, which is slower "
                      "for small batches, since it could not record one: {}",
                      recording.status().message()));
    }
    return nullptr;
  }
  graph.recording = *std::move(recording);
  ++recorded_;
  // The first run may have made or moved memory; what was recorded before it then is no more.
  std::vector<const void*> addresses = Addresses();
  if (addresses != addresses_) graphs_.clear();
  addresses_ = std::move(addresses);
  return &graphs_.insert_or_assign(key, std::move(graph)).first->second;
}

}  // namespace keel::rollout
