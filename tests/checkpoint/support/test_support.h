// What the checkpoint tests share: temporary directories, ranks as threads, states cut into
// layouts.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/peer_channel.h"
#include "checkpoint/checkpointer.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint::testing {

// A directory that goes away with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::unique_ptr<FileSystem> Open() const;

 private:
  std::string path_;
};

std::string ReadAll(const std::string& path);
void WriteAll(const std::string& path, const std::string& content);

// A manifest's text with the digest that its content has now.
std::string Sign(std::string manifest);

// A quiet logger.
LogOptions Quiet();

// body(r, its coordinator) on `world` threads; all must return before this does.
void RunRanks(int world, const std::function<void(int rank, Coordinator& coordinator)>& body);
// body(r) on `world` threads; all must return before this does.
void OnThreads(int world, const std::function<void(int rank)>& body);

// The global state of a model: every tensor whole, dense, filled from a seed.
struct GlobalTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};
using GlobalState = std::map<std::string, GlobalTensor>;

GlobalState MakeState(const std::vector<TensorInfo>& tensors, uint64_t seed);

// One rank's part of a state: its table and the memory behind it. Filled from the state, or zeroed.
struct RankPart {
  ShardTable table;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
  // Adds a box whose view is dense, or strided (rows padded) when `padding` elements > 0.
  void AddBox(const TensorInfo& tensor, const Box& box, int replica = 0, int64_t padding = 0);
  void Fill(const GlobalState& state);
  void Clear(int value);
  // The first tensor whose values differ from the state's; "" when all are equal.
  std::string FirstDifference(const GlobalState& state) const;
};

// A layout: which boxes of each tensor each rank holds. Random cuts in every dim, random owners,
// random replicas; every element is held by someone.
struct LayoutOptions {
  int world = 1;
  bool replicas = true;
  bool one_box_per_rank = true;  // at most one box of a tensor on a rank
  bool strided = true;
};
std::vector<RankPart> RandomLayout(const std::vector<TensorInfo>& tensors,
                                   const LayoutOptions& options, std::mt19937_64& random);

// Tensors of all kinds: scalars, vectors, matrices, one of odd size, one that needs several chunks.
std::vector<TensorInfo> SampleModel(int64_t scale = 1);
std::vector<TensorInfo> SampleOptimizer(int64_t scale = 1);

// kTiny: two tensors, for tests that save thousands of times.
enum class ModelSize { kTiny, kSample };

// The state of one role, and a state cut over ranks.
struct TrainingState {
  GlobalState model;
  GlobalState optimizer;
};
TrainingState MakeTrainingState(uint64_t seed, ModelSize size = ModelSize::kSample);

struct Cut {
  std::vector<RankPart> model;
  std::vector<RankPart> optimizer;

  Cut(const LayoutOptions& options, uint64_t seed, ModelSize size = ModelSize::kSample);
  int world() const { return static_cast<int>(model.size()); }
  void Fill(const TrainingState& state);
  void Clear(int value);
  // "rank 1: model.norm.weight[0:4]", or "" when all values are the state's.
  std::string FirstDifference(const TrainingState& state) const;
  std::vector<RoleState> Roles(int rank) const;
};

// Four ranks that all hold "most", F32 [64, 256], beside a tiny model, and the state they are
// filled with.
struct StateOfOneBox {
  TrainingState state;
  Cut cut;
};
StateOfOneBox MakeStateOfOneBox();

// What every rank of a job does: open, save or load, close. The outcome is rank 0's; that all ranks
// came to the same is checked.
Status SaveOn(FileSystem& fs, const Cut& cut, int64_t step, const CheckpointOptions& options,
              const std::function<void(SaveRequest&)>& change = {});
Result<std::optional<LoadRecord>> LoadFrom(FileSystem& fs, const Cut& cut,
                                           const std::function<void(LoadRequest&)>& change = {});

// A load with everything in the test's hands.
struct LoadSetup {
  std::vector<FileSystem*> views;  // of each rank
  CheckpointOptions options;
  bool exchange = true;  // over a LocalChannelHub; otherwise each rank reads for itself
  // Before Load is called; false: the rank does not call it, as if it had died.
  std::function<bool(int rank, LoadRequest&)> change;
};
struct LoadOutcome {
  std::vector<Status> statuses;                    // of each rank
  std::vector<std::optional<LoadRecord>> records;  // likewise
};
LoadOutcome LoadRanks(const Cut& cut, const LoadSetup& setup);

// Options for small tests: 4 KiB chunks, so that even small files have many.
CheckpointOptions SmallOptions();

}  // namespace keel::checkpoint::testing
