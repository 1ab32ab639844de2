// Sets a share of samples apart for validation.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/philox.h"

namespace keel::trainer {

// Moves each of `items` out with probability `share`, drawn from (seed, stream) and its id alone,
// so that the same ones go whatever else is in the set. Order is kept in both.
template <typename Item>
std::vector<Item> SplitOff(std::vector<Item>* items, double share, uint64_t seed, uint64_t stream) {
  const Philox rng(seed, stream);
  std::vector<Item> stay, apart;
  for (Item& item : *items) {
    auto& to = rng.Uniform(static_cast<uint64_t>(item.id)) < share ? apart : stay;
    to.push_back(std::move(item));
  }
  *items = std::move(stay);
  return apart;
}

}  // namespace keel::trainer
