// The page of `keel watch --http`, served by the keel_watch module, which alone needs an HTTP
// library and is loaded for it. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel::tools {

struct WatchServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;                            // 0: one that is free
  std::string key;                         // "": none is asked for, which is for this machine alone
  std::chrono::milliseconds period{1000};  // between two looks
  const std::atomic<bool>* stop = nullptr;  // when to return
};

// What is served.
class WatchSource {
 public:
  virtual ~WatchSource() = default;
  // Whether anything has changed since the last look. Called by one thread.
  virtual bool Look() = 0;
  // The answer to "after/<n>", of the last look; called by the same thread.
  virtual std::string Answer(int64_t version) = 0;
  // What Prometheus is answered at /metrics; nothing: the run writes none. Called by any thread.
  virtual std::optional<std::string> Metrics() const = 0;
};

// Calls `listening` with the port, then serves until options.stop. Loads the module: kUnavailable
// says why that fails, that it is of another build, or that the address is taken.
Status ServeWatch(const WatchServerOptions& options, WatchSource& source,
                  const std::function<void(int port)>& listening);

// What the module exports: ServeWatch's work.
inline constexpr const char* kServeWatchSymbol = "KeelServeWatch";
using ServeWatchFunction = void (*)(const WatchServerOptions&, WatchSource&, std::string_view page,
                                    const std::function<void(int port)>&, Status* status);

}  // namespace keel::tools
