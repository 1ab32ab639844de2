// The c10d store behind Store; for store.cc, store_server.cc and the process groups only.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/store.h"

namespace keel::parallel {

struct Store::Impl {
  c10::intrusive_ptr<c10d::Store> store;
  std::string address;  // for messages: "10.0.0.1:29500", "in process"
};

// Lets a write to a socket whose peer is gone fail with EPIPE. c10d's server (libuv) and gloo write
// without MSG_NOSIGNAL and leave SIGPIPE to the program, whose default is to die without a word; a
// lost peer is to be reported. Every process of a job connects to a store, so that is where it is
// called. A handler that the program set stays.
void IgnoreBrokenPipes();

}  // namespace keel::parallel
