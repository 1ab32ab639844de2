// StoreServer: the job's key-value store, served by a launcher so that it outlives the ranks, or by
// rank 0 where no launcher does.
//
// Torch-free. One thread, which takes no signals. It speaks the protocol of c10d's TCPStore
// (store_wire.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace keel::parallel {

struct StoreServerOptions {
  std::string host = {};    // whose address to listen at; empty: all interfaces
  int port = 0;             // 0: any free one
  std::string secret = {};  // what every connection proves; empty: whoever connects is served
  // Called on the server's thread with the address of who was turned away, and why.
  std::function<void(const std::string& peer, const std::string& why)> on_refusal = {};
};

class StoreServer {
 public:
  static Result<StoreServer> Start(StoreServerOptions options);
  StoreServer(StoreServer&&) noexcept;
  StoreServer& operator=(StoreServer&&) noexcept;
  ~StoreServer();  // ends the service and its connections
  int port() const;

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Where to listen for a job whose ranks know the store by `host`: at that address if this host
// alone can reach it or needs to (`one_node`), else at all interfaces, since the name may mean
// another address to other nodes.
std::string WhereToListen(const std::string& host, bool one_node);

}  // namespace keel::parallel
