// The checkpoint's Coordinator over the job's store.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "parallel/store/store.h"

namespace keel::trainer {

// Waits long in its store's calls, so `store` is a connection of its own (Store::Clone).
class StoreCoordinator final : public checkpoint::Coordinator {
 public:
  StoreCoordinator(const parallel::Store& store, int rank, int world)
      : store_(store.WithPrefix("checkpoint")), rank_(rank), world_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  Status Put(std::string_view key, std::string_view value) override {
    return store_.Set(key, value);
  }
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    return store_.Get(key, deadline);
  }
  Status Delete(std::string_view key) override { return store_.Delete(key); }
  Result<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& keys, std::chrono::milliseconds patience) override {
    return store_.Look(keys, patience);
  }
  Status PutAll(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override {
    return store_.SetAll(keys, values);
  }
  Status DeleteAll(const std::vector<std::string>& keys) override { return store_.DeleteAll(keys); }

 private:
  parallel::Store store_;
  int rank_;
  int world_;
};

}  // namespace keel::trainer
