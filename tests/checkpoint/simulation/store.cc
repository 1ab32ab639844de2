#include "tests/checkpoint/simulation/store.h"

#include <fmt/format.h>

#include <utility>

namespace keel::checkpoint::testing {

using std::chrono::microseconds;

SimStore::SimStore(Scheduler& scheduler, Dice& dice, const Weather& weather, SimTime deadline,
                   Watch watch)
    : scheduler_(scheduler),
      dice_(dice),
      weather_(weather),
      deadline_(deadline),
      watch_(std::move(watch)) {}

void SimStore::Deliver(const std::string& key, const std::string& value) {
  values_.insert_or_assign(key, value);
  if (const auto gate = gates_.find(key); gate != gates_.end()) scheduler_.Open(gate->second);
}

class SimStore::Member : public Coordinator {
 public:
  Member(SimStore& store, SimProcess& process, int world)
      : store_(store), process_(process), world_(world) {}

  int rank() const override { return process_.rank; }
  int world() const override { return world_; }
  const Clock& clock() const override { return store_.scheduler_; }

  Status Put(std::string_view key, std::string_view value) override {
    KEEL_RETURN_IF_ERROR(Call("put", key));
    if (store_.dice_.Chance(store_.weather_.store_loss)) {
      store_.disturbed_ = true;
      return Status::Ok();
    }
    SimTime delay = store_.dice_.About(microseconds(200));
    if (store_.dice_.Chance(store_.weather_.store_delay)) {
      store_.disturbed_ = true;
      delay += store_.dice_.About(2 * store_.deadline_);
    }
    store_.scheduler_.At(store_.scheduler_.Monotonic() + delay,
                         [&store = store_, key = std::string(key), value = std::string(value)] {
                           store.Deliver(key, value);
                         });
    return Status::Ok();
  }

  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    KEEL_RETURN_IF_ERROR(Call("get", key));
    const SimTime until = store_.scheduler_.Monotonic() + deadline;
    for (;;) {
      if (process_.dead) return Dead();
      if (const auto found = store_.values_.find(key); found != store_.values_.end())
        return found->second;
      if (store_.scheduler_.Monotonic() >= until) {
        return Status(StatusCode::kDeadlineExceeded,
                      fmt::format("rank {} waited {} ms for '{}', which no peer has set",
                                  process_.rank, deadline.count(), key));
      }
      (void)store_.scheduler_.WaitAt(store_.gates_[std::string(key)], until);
    }
  }

  Status Delete(std::string_view key) override {
    KEEL_RETURN_IF_ERROR(Call("delete", key));
    if (const auto found = store_.values_.find(key); found != store_.values_.end())
      store_.values_.erase(found);
    return Status::Ok();
  }

 private:
  Status Dead() const { return Status(StatusCode::kUnavailable, "this process is dead"); }

  Status Call(std::string_view operation, std::string_view key) {
    if (process_.dead) return Dead();
    store_.scheduler_.SleepFor(store_.dice_.About(microseconds(100)));
    if (process_.dead) return Dead();
    store_.watch_(process_, operation, key);
    if (process_.dead) return Dead();
    if (store_.dice_.Chance(store_.weather_.store_error)) {
      store_.disturbed_ = true;
      return Status(StatusCode::kUnavailable,
                    fmt::format("{} '{}': no connection", operation, key));
    }
    return Status::Ok();
  }

  SimStore& store_;
  SimProcess& process_;
  const int world_;
};

std::unique_ptr<Coordinator> SimStore::Connect(SimProcess& process, int world) {
  return std::make_unique<Member>(*this, process, world);
}

}  // namespace keel::checkpoint::testing
