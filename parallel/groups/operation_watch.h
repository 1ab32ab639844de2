// OperationWatch: ends operations of groups that hang where the host does not wait for them.
//
// On a GPU an operation is given to a stream and the host goes on; a peer that is lost shows much
// later, as a host that waits for the stream and never returns. So a thread looks at all operations
// under way. The first that fails, or is not done within its deadline, is kept under its name, and
// every group is aborted: streams go on, hosts return from their waits, and the next operation of
// any group throws what was kept, as the wait of a group in host memory does. No host is to believe
// what it read of a device before it has asked `failure`.
//
// Groups are aborted together: the end of one may wait for a device that is busy with an operation
// of another, which only that one's abort ends.
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
#include <vector>

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

  // `abort` is called once at most, when an operation of any group has failed. It must not throw.
  // The thread starts with the first group.
  Id AddGroup(std::function<void()> abort);
  // Forgets the group and its operations. Waits while groups are being aborted.
  void RemoveGroup(Id group);
  // Waits until all operations of the group are done, or one of any group has failed.
  Status Drain(Id group);
  // Aborts all groups, where operations of any are under way: for whoever leaves because of an
  // error, and does not wait for what nobody else may answer any more. Else nothing.
  void AbortIfBusy();
  // Operations of one group are looked at in the order in which they were added.
  void Add(Id group, Operation operation);

  // Called first of all on the watch's thread. What this and the next throw is passed over.
  void set_at_start(std::function<void()> hook);
  // Called when an operation has failed, before any group is aborted: what is done by now is of
  // value.
  void set_before_abort(std::function<void()> hook);
  // Calls all of them, in such a way that none waits for another one's end, and does not throw.
  // Without it each has a thread of its own where there is one.
  using Aborts = std::vector<std::function<void()>>;
  void set_abort_together(std::function<void(const Aborts&)> way);

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
  void AbortAll(std::unique_lock<std::mutex>& lock, Status why);

  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Id, Group> groups_;
  Id next_ = 0;
  bool aborting_ = false;
  bool aborted_ = false;
  std::function<void()> at_start_;
  std::function<void()> before_abort_;
  std::function<void(const Aborts&)> abort_together_;
  Status failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace keel::parallel
