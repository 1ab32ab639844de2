// Store: the job's key-value store, for rendezvous and the side channel: Keel's own (StoreServer),
// or under torchrun the TCPStore of its agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/launch_env.h"

namespace keel::parallel {

class Store {
 public:
  struct Impl;  // holds the c10d store; defined where c10d is seen
  explicit Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // As the launch environment says: a client of the agent's store under torchrun and of the
  // launcher's under keel launch, a server on rank 0 otherwise. All keys get the prefix "<run
  // id>/attempt_<restart count>". A world of one without an address needs no network: an in-process
  // store. From here on this process ignores SIGPIPE (unless it handles it): a peer that ended is
  // an error of the call that finds it.
  static Result<Store> Connect(const LaunchEnv& env, std::chrono::milliseconds deadline);
  // In-process store for ranks that are threads (tests).
  static Store InProcess();

  Store WithPrefix(std::string_view prefix) const;
  // The same keys over a connection of its own. Calls over one connection take turns, and under
  // torchrun a Get that waits keeps its turn for a while: whoever waits long clones the store
  // first.
  Result<Store> Clone() const;
  Status Set(std::string_view key, std::string_view value) const;
  // Returns as soon as the key exists; kDeadlineExceeded names the key. A deadline of 0 only looks.
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) const;
  Result<int64_t> Add(std::string_view key, int64_t amount) const;
  Status Delete(std::string_view key) const;
  // Many at a time: over Keel's own store in one trip, or one for some hundreds.
  //
  // What is there of each key once all of them are, or at `patience`; nothing at all, and at once,
  // over a store of c10d's, where each costs a trip.
  Result<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                       std::chrono::milliseconds patience) const;
  Status SetAll(const std::vector<std::string>& keys, const std::vector<std::string>& values) const;
  Status DeleteAll(const std::vector<std::string>& keys) const;

  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

// Keeps c10d's own warnings, each with a stack trace, out of this process's output, unless
// TORCH_CPP_LOG_LEVEL asks for them. For programs in which a lost store is a Status like any other.
void SilenceStoreWarnings();

}  // namespace keel::parallel
