// StreamGroup: a group whose operations the device's stream waits for, and not the host.
//
// Whatever hangs or fails is found by the OperationWatch, and thrown by the next operation of any
// of its groups, and by the next Wait.
#pragma once

#include <functional>
#include <memory>

#include "parallel/groups/operation_watch.h"
#include "parallel/groups/process_group_backend.h"

namespace keel::parallel {

class StreamGroup : public BackendGroup {
 public:
  // `backend` and `watch` outlive this. `abort` ends all operations of the backend; see
  // OperationWatch.
  StreamGroup(c10d::Backend& backend, WhereInGroup where, OperationWatch& watch,
              std::function<void()> abort);
  ~StreamGroup() override;

  void CheckAlive() const override;

 protected:
  // Waits for what is under way, for no longer than the watch lets it. Throws what it failed of.
  void Drain();
  // From here on `abort` is not called any more.
  void StopWatching();
  // What the watch looks at: an operation's state alone. It outlives the operation's results, which
  // the watch must not keep alive.
  virtual c10::intrusive_ptr<c10d::Work> StateOf(const c10::intrusive_ptr<c10d::Work>& work) const {
    return work;
  }

 private:
  std::unique_ptr<Work> Watch(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                              int peer) override;

  OperationWatch& watch_;
  const OperationWatch::Id id_;
  bool watching_ = true;
};

}  // namespace keel::parallel
