// OperationWatch: ends operations of groups that hang where the host does not wait for them.
//
// On a GPU an operation is given to a stream and the host goes on; a peer that is lost shows much
// later, as a host that waits for the stream and never returns. So a thread looks at all operations
// under way. The first that fails, or is not done within its deadline, is kept under its name, and
// every group is aborted: streams go on, hosts return from their waits, and the next operation of
// any group throws what was kept, as the wait of a group in host memory does. No host is to believe
// what it read of a device before it has asked `failure`.
//
// All methods are thread-safe. Groups are removed before their memory goes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "common/status.h"

namespace keel::parallel {

class OperationWatch {
 public:
  using Id = int64_t;
  struct Operation {
    std::chrono::milliseconds deadline{0};
    // Does not wait. True when done; an error when it failed.
    std::function<Result<bool>()> done;
    // What to say when the deadline has passed.
    std::function<Status()> late;
  };

  // `period`: between two looks.
  explicit OperationWatch(std::chrono::milliseconds period = std::chrono::milliseconds(100))
      : period_(period) {}
  ~OperationWatch();
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

  // `abort` is called once at most, on the watch's thread, when an operation of any group has
  // failed. It must not throw. The thread starts with the first group.
  Id AddGroup(std::function<void()> abort);
  // Forgets the group and its operations. Waits while it is being aborted.
  void RemoveGroup(Id group);
  // Operations of one group are looked at in the order in which they were added.
  void Add(Id group, Operation operation);

  // Called on the watch's thread when an operation has failed, before any group is aborted: what is
  // done by now is of value.
  void set_before_abort(std::function<void()> hook);

  // Of the first operation that hung or failed; ok: none did.
  Status failure() const;

 private:
  struct Pending {
    Operation operation;
    std::chrono::steady_clock::time_point end;
  };
  struct Group {
    std::function<void()> abort;
    std::deque<Pending> pending;
  };

  void Run();
  // Takes what is done off the queues. The first failure.
  Status Look();
  void AbortAll(std::unique_lock<std::mutex>& lock);

  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Id, Group> groups_;
  Id next_ = 0;
  Id aborting_ = -1;  // whose `abort` is running
  std::function<void()> before_abort_;
  Status failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace keel::parallel
