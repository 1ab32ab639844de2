// SimStore: the store that the ranks of one start share, in virtual time.
//
// A message can be slow, or never arrive; an operation can fail. A message cannot arrive twice,
// since a key names it: the second would overwrite the first with the same bytes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/base/coordinator.h"
#include "tests/checkpoint/simulation/scheduler.h"
#include "tests/checkpoint/simulation/weather.h"

namespace keel::checkpoint::testing {

class SimStore {
 public:
  // Called at each operation; may kill its process. All must outlive this.
  using Watch =
      std::function<void(SimProcess& process, std::string_view operation, std::string_view key)>;
  SimStore(Scheduler& scheduler, Dice& dice, const Weather& weather, SimTime deadline, Watch watch);

  // The store as `process` sees it; valid as long as both.
  std::unique_ptr<Coordinator> Connect(SimProcess& process, int world);

  bool disturbed() const { return disturbed_; }  // a message was lost, late or refused

 private:
  class Member;
  void Deliver(const std::string& key, const std::string& value);

  Scheduler& scheduler_;
  Dice& dice_;
  const Weather& weather_;
  const SimTime deadline_;
  const Watch watch_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, Scheduler::Gate, std::less<>> gates_;
  bool disturbed_ = false;
};

}  // namespace keel::checkpoint::testing
