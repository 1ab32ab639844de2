// ToolPool: the tools of a run on threads of their own, beside generation.
//
// Submit hands a call over at once; Poll takes the replies that are there. Both belong to one
// thread. Each tool has num_workers servers, each with a thread; its calls wait for the first that
// is free. Destroying the pool drops what is queued and ends calls under way. Torch-free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"
#include "turns/tool_server.h"
#include "turns/tools_file.h"

namespace keel::turns {

class ToolPool {
 public:
  // Throws Error(kConfig) for an address that is none, Error(kExhausted) when there are not so many
  // threads.
  explicit ToolPool(const std::vector<ToolSpec>& tools);
  ~ToolPool();
  ToolPool(const ToolPool&) = delete;
  ToolPool& operator=(const ToolPool&) = delete;

  // Starts every server, before the first Submit: the first error of theirs.
  Status Start();

  bool Has(const std::string& tool) const { return queues_.contains(tool); }

  // Of a tool that it has. Returns the call's number, which is the reply's id.
  int64_t Submit(ToolRequest request);
  // Replies that are there by now, in any order, each once. Waits up to `patience` for the first.
  std::vector<ToolReply> Poll(std::chrono::milliseconds patience = {});

 private:
  void Work(ToolServer& server, std::deque<ToolRequest>& queue);
  void StopThreads();

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::map<std::string, std::deque<ToolRequest>> queues_;  // by tool; fixed when threads run
  std::vector<ToolReply> replies_;
  int64_t next_ = 0;
  bool stopping_ = false;
  std::vector<std::unique_ptr<ToolServer>> servers_;
  std::vector<std::thread> threads_;
};

}  // namespace keel::turns
