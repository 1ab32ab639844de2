#include "parallel/groups/stream_group.h"

#include <utility>

namespace keel::parallel {

namespace {

// Wait orders the current stream behind the operation.
class StreamWork final : public Work {
 public:
  StreamWork(c10::intrusive_ptr<c10d::Work> work, const WhereInGroup& where, const char* operation,
             const OperationWatch& watch)
      : work_(std::move(work)), where_(where), operation_(operation), watch_(watch) {}
  void Wait() override {
    ThrowIfError(watch_.failure());
    try {
      work_->wait();
    } catch (const std::exception& error) {
      ThrowIfError(watch_.failure());
      where_.Rethrow(operation_, error);
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  const WhereInGroup& where_;
  const char* operation_;
  const OperationWatch& watch_;
};

}  // namespace

StreamGroup::StreamGroup(c10d::Backend& backend, WhereInGroup where, OperationWatch& watch,
                         std::function<void()> abort)
    : BackendGroup(backend, std::move(where)),
      watch_(watch),
      id_(watch.AddGroup(std::move(abort))) {}

StreamGroup::~StreamGroup() { StopWatching(); }

void StreamGroup::StopWatching() {
  if (std::exchange(watching_, false)) watch_.RemoveGroup(id_);
}

void StreamGroup::Drain() { ThrowIfError(watch_.Drain(id_)); }

void StreamGroup::CheckAlive() const { ThrowIfError(watch_.failure()); }

std::unique_ptr<Work> StreamGroup::Watch(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                                         int) {
  OperationWatch::Operation watched;
  watched.deadline = where().deadline;
  watched.done = [this, state = StateOf(work), operation]() -> Result<bool> {
    if (where().IsGivenUp()) return where().Failure(operation, "the peer was given up");
    try {
      if (!state->isCompleted()) return false;
      if (const std::exception_ptr error = state->exception()) std::rethrow_exception(error);
      return true;
    } catch (const std::exception& error) {
      return where().Failure(operation, error);
    }
  };
  watched.late = [this, operation] { return where().Failure(operation, "timed out"); };
  watch_.Add(id_, std::move(watched));
  return std::make_unique<StreamWork>(std::move(work), where(), operation, watch_);
}

}  // namespace keel::parallel
