// StoreCoordinator: the checkpoint's Coordinator over a store that speaks TCPStore's protocol, by
// Keel's own torch-free client. Thread-safe, as that is.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "parallel/store/store_client.h"

namespace keel::library {

class StoreCoordinator final : public checkpoint::Coordinator {
 public:
  // All keys begin with `prefix`.
  StoreCoordinator(std::unique_ptr<parallel::StoreClient> client, std::string prefix, int rank,
                   int world)
      : client_(std::move(client)), prefix_(std::move(prefix)), rank_(rank), world_(world) {}

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

 private:
  std::string Named(std::string_view key) const { return prefix_ + std::string(key); }
  std::vector<std::string> Named(const std::vector<std::string>& keys) const;
  // The same; of a store that is not there also whose it is.
  Status Told(const Status& status) const;

  const std::unique_ptr<parallel::StoreClient> client_;
  const std::string prefix_;
  const int rank_;
  const int world_;
};

// "10.0.0.1:29500" or "[::1]:29500". kUsage says what is wrong.
Result<parallel::StoreAddress> ParseStoreAddress(std::string_view text);

}  // namespace keel::library
