// The other ranks of a made-up job, in one process that serves the job's store to rank 0.
//
// Each runs the real code of a rank, but for its data: it writes files of the right sizes that have
// nothing in them. They take turns on one thread, each on a stack of its own: one goes on when what
// it waits for is in the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/scale_state.h"
#include "checkpoint/base/coordinator.h"
#include "common/json.h"
#include "parallel/store/store_client.h"

namespace keel::bench {

// What went over a rank's connection to the store.
struct Traffic {
  int64_t messages = 0;  // trips: many keys may share one
  int64_t sent = 0;      // bytes of keys and values
  int64_t received = 0;
};

// A Coordinator over a connection to the job's store, which counts.
class StoreCoordinator : public checkpoint::Coordinator {
 public:
  StoreCoordinator(parallel::StoreClient& store, int rank, int world)
      : store_(store), rank_(rank), world_(world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  Status Put(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override;
  Status Delete(std::string_view key) override;
  Result<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                       std::chrono::milliseconds patience) override;
  Status PutAll(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override;
  Status DeleteAll(const std::vector<std::string>& keys) override;

  const Traffic& traffic() const { return traffic_; }
  // Spent on waiting for keys that were not there yet.
  double waited_s() const { return waited_s_; }

 protected:
  // Returns when the key may be there.
  virtual Status Await(const std::string& key, std::chrono::milliseconds deadline);
  parallel::StoreClient& store_;

 private:
  void CountTrips(const std::vector<std::string>& keys);

  const int rank_;
  const int world_;
  Traffic traffic_;
  double waited_s_ = 0;
};

struct ScalePeersOptions {
  int ranks = 0;
  int saves = 0;
  std::string directory;  // of the checkpoints
};

// The key under which the traffic of all peers is found when they are done.
inline constexpr std::string_view kPeersAreDone = "bench/peers";
inline constexpr std::string_view kPeersAreReady = "bench/ready";
std::string SaveTag(int save);

// Serves the store at a port that `told` hears of, and is all peers of rank 0 until they have seen
// so many saves; then until rank 0 says so under "bench/end".
void RunScalePeers(const ScalePeersOptions& options, const std::function<void(int port)>& told);

}  // namespace keel::bench
