// The c10d store behind Store; for store.cc and the process groups only.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/store/store.h"
#include "parallel/store/store_client.h"
#include "parallel/store/store_server.h"

namespace keel::parallel {

struct Store::Impl {
  StoreClient* Client() const;
  std::vector<std::string> WithPrefix(const std::vector<std::string>& keys) const;

  std::shared_ptr<StoreServer> server;  // on rank 0, where no launcher serves
  c10::intrusive_ptr<c10d::Store> store;
  // After which a wait asks again: where others cannot call over the connection meanwhile.
  std::chrono::milliseconds longest_wait = std::chrono::milliseconds::max();
  std::string prefix;   // of the keys in `store`, with a slash behind each part
  std::string address;  // for messages: "10.0.0.1:29500", "in process"
};

}  // namespace keel::parallel
