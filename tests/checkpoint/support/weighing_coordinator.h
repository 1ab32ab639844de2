// Weighing: another coordinator, which knows how long the texts are that go through it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "checkpoint/base/coordinator.h"

namespace keel::checkpoint::testing {

class Weighing final : public Coordinator {
 public:
  explicit Weighing(Coordinator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  Status Put(std::string_view key, std::string_view value) override {
    longest_ = std::max(longest_, value.size());
    return inner_.Put(key, value);
  }
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    return inner_.Get(key, deadline);
  }
  Status Delete(std::string_view key) override { return inner_.Delete(key); }

  // Of what this rank has put there.
  size_t longest() const { return longest_; }

 private:
  Coordinator& inner_;
  size_t longest_ = 0;
};

}  // namespace keel::checkpoint::testing
