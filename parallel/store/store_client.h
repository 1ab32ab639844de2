// StoreClient: a connection to the job's store, for launchers, and for ranks where a launcher of
// Keel or rank 0 serves it.
//
// Torch-free. Thread-safe: calls take turns; one that waits lets the others go first. After an
// error that is not kDeadlineExceeded of Wait the connection is lost, and every further call says
// so.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/store/sockets.h"
#include "parallel/store/store_wire.h"

namespace keel::parallel {

// What a client of the store gives for a key that is not set; no value is ever this one.
inline constexpr std::string_view kNoValue =
    "keel: 5f1c6f0e-0b9a-4c1e-9d3f-8a7d2e61b0c4 is no value";

struct StoreAddress {
  std::string host;
  int port = 0;
  std::string secret;  // to be proved; empty: none

  std::string ToString() const;  // "10.0.0.1:29500"
};

class StoreClient {
 public:
  // Tries again until `deadline`, unless the store says no: kUsage, of the secret. `answer_limit`:
  // for the store to answer a call.
  static Result<std::unique_ptr<StoreClient>> Connect(const StoreAddress& address,
                                                      std::chrono::milliseconds deadline,
                                                      std::chrono::milliseconds answer_limit);
  const StoreAddress& address() const { return address_; }
  // Of the queries that are under way at a time.
  static constexpr size_t kMostAtOnce = 256;

  Status Set(std::string_view key, std::string_view value);
  // Sets it if it is `expected`, or if it is missing and nothing is expected. What it is then;
  // `expected`, if it is missing.
  Result<std::string> CompareSet(std::string_view key, std::string_view expected,
                                 std::string_view value);
  // Empty if it is missing.
  Result<std::string> Get(std::string_view key);
  Result<std::optional<std::string>> TryGet(std::string_view key);
  // The same of many, all asked before the first answer: a trip for each kMostAtOnce.
  Result<std::vector<std::optional<std::string>>> TryGetAll(const std::vector<std::string>& keys);
  // The same once all are there, or at `patience`.
  Result<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                       std::chrono::milliseconds patience);
  Result<int64_t> Add(std::string_view key, int64_t amount);
  Result<bool> Has(const std::vector<std::string>& keys);
  // The server answers when all are there: nobody asks meanwhile. kDeadlineExceeded names the keys.
  Status Wait(const std::vector<std::string>& keys, std::chrono::milliseconds deadline);
  Result<int64_t> NumKeys();
  Result<bool> Delete(std::string_view key);
  // Of many, likewise.
  Status DeleteAll(const std::vector<std::string>& keys);
  Status Append(std::string_view key, std::string_view value);
  Result<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys);
  Status MultiSet(const std::vector<std::string>& keys, const std::vector<std::string>& values);

 private:
  using Clock = std::chrono::steady_clock;
  // A call's hold of the connection, which interrupts a wait.
  class Turn;

  StoreClient(StoreAddress address, Socket socket, Socket wake,
              std::chrono::milliseconds answer_limit)
      : address_(std::move(address)),
        socket_(std::move(socket)),
        wake_(std::move(wake)),
        answer_limit_(answer_limit) {}
  Status Introduce();
  // Each remembers that the connection is lost.
  Status Send(const WireWriter& out);
  Status Receive(void* to, size_t size);
  // What has come, as far as the buffer holds it; waits for something.
  Status Refill(Clock::time_point until);
  Status ReceiveText(std::string& text);
  Status Lose(Status status);
  // True once there is something to read; false at `until`, or when another call wants its turn.
  Result<bool> Readable(Clock::time_point until, bool gives_way = false);
  // One wait of the server's: whether all keys are there now.
  Result<bool> WaitOnce(const std::vector<std::string>& keys, Clock::time_point until);

  const StoreAddress address_;
  std::mutex mutex_;
  std::condition_variable calm_;  // nobody wants a turn
  std::atomic<int> wanting_{0};   // calls that want the turn and do not have it
  std::atomic<bool> waiting_{false};
  std::atomic<int> waits_{0};  // calls of Wait
  Socket socket_;
  Socket wake_;  // an eventfd: readable when a call wants the turn of a wait
  std::chrono::milliseconds answer_limit_;
  std::string buffer_;  // received, of which
  size_t taken_ = 0;    // so much has been taken
  Status lost_;
};

}  // namespace keel::parallel
