// StoreServer: the job's TCP store, served by a launcher so that it outlives the ranks.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"

namespace keel::parallel {

class StoreServer {
 public:
  // Serves on `port`, or on any free one when it is 0. c10d's server listens on all interfaces and
  // knows no authentication: keep the port inside the cluster.
  static Result<StoreServer> Start(const std::string& host, int port);
  int port() const;

 private:
  struct Impl;
  explicit StoreServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace keel::parallel
