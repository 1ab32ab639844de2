// The c10d store behind Store; for store.cc and the process groups only.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/store.h"

namespace keel::parallel {

struct Store::Impl {
  c10::intrusive_ptr<c10d::Store> store;
  std::string address;  // for messages: "10.0.0.1:29500", "in process"
};

}  // namespace keel::parallel
