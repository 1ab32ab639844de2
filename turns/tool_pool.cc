#include "turns/tool_pool.h"

#include <fmt/format.h>

#include <functional>
#include <system_error>
#include <utility>

#include "common/guarded.h"

namespace keel::turns {

ToolPool::ToolPool(const std::vector<ToolSpec>& tools) {
  std::vector<std::deque<ToolRequest>*> queue_of;  // by server
  for (const ToolSpec& tool : tools) {
    for (int64_t i = 0; i < tool.num_workers; ++i) {
      servers_.push_back(MakeToolServer(tool));
      queue_of.push_back(&queues_[tool.name]);
    }
  }
  threads_.reserve(servers_.size());
  try {
    for (size_t i = 0; i < servers_.size(); ++i)
      threads_.emplace_back(&ToolPool::Work, this, std::ref(*servers_[i]), std::ref(*queue_of[i]));
  } catch (const std::system_error& error) {
    StopThreads();
    throw Error(StatusCode::kExhausted,
                fmt::format("no thread for tool worker {} of {}: {}: lower num_workers in "
                            "actor_rollout_ref.rollout.multi_turn.tool_config_path, or raise the "
                            "limits of memory (ulimit -v) and of processes (ulimit -u)",
                            threads_.size() + 1, servers_.size(), error.what()));
  }
}

ToolPool::~ToolPool() { StopThreads(); }

void ToolPool::StopThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (const auto& server : servers_) server->Cancel();
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status ToolPool::Start() {
  // No thread touches its server before there is a call.
  for (const auto& server : servers_) KEEL_RETURN_IF_ERROR(server->Start());
  return Status::Ok();
}

int64_t ToolPool::Submit(ToolRequest request) {
  const int64_t number = next_++;
  request.id = number;
  {
    const std::lock_guard lock(mutex_);
    queues_.at(request.tool).push_back(std::move(request));
  }
  work_.notify_all();
  return number;
}

std::vector<ToolReply> ToolPool::Poll(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (patience.count() > 0) done_.wait_for(lock, patience, [this] { return !replies_.empty(); });
  return std::exchange(replies_, {});
}

void ToolPool::Work(ToolServer& server, std::deque<ToolRequest>& queue) {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !queue.empty(); });
    if (stopping_) return;
    const ToolRequest request = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    ToolReply reply;
    const Status called = Guarded([&] {
      reply = server.Call(request);
      return Status::Ok();
    });
    if (!called.ok()) {
      reply = {};
      reply.id = request.id;
      reply.error = "the tool failed";
      reply.problem = called.message();
    }
    lock.lock();
    replies_.push_back(std::move(reply));
    done_.notify_all();
  }
}

}  // namespace keel::turns
