// JobStore: the key-value store of a job, as its launchers see it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/status.h"
#include "parallel/store/store_client.h"

namespace keel::tools {

// A client of the job's key-value store. Not thread-safe.
class JobStore {
 public:
  virtual ~JobStore() = default;
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // Nothing while the key does not exist; an error when the store is gone.
  virtual Result<std::optional<std::string>> TryGet(const std::string& key) = 0;
  // The sum; a key that does not exist counts as 0.
  virtual Result<int64_t> Add(const std::string& key, int64_t amount) = 0;
};

// Tries for some seconds. kUsage when the store says no: trying again does not help. `run_id` keeps
// the keys of jobs apart. `answer_limit`: of every call.
Result<std::unique_ptr<JobStore>> ConnectJobStore(const parallel::StoreAddress& address,
                                                  const std::string& run_id,
                                                  std::chrono::milliseconds answer_limit);

}  // namespace keel::tools
