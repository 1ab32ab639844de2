// ServeOrders: what all ranks of keel serve do to their engines before a step, as rank 0 says it.
// Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "rollout/sequence.h"

namespace keel::tools {

// Of the weights of another checkpoint.
enum class WeightOrder {
  kNone,
  kRead,   // begin to read them, of `step`, beside what runs
  kAgree,  // say whether they are there
  kAdopt,  // compute with them; nothing runs
};

struct ServeOrders {
  std::vector<std::pair<uint64_t, int>> take;  // prompt id and sample of what is not to go on
  WeightOrder weights = WeightOrder::kNone;    // after that
  std::string step;
  std::vector<rollout::Request> add;  // after that, in this order

  bool empty() const { return take.empty() && add.empty() && weights == WeightOrder::kNone; }
};

// Between programs of one build. Requests have no response so far.
std::string Packed(const ServeOrders& orders);
Result<ServeOrders> Unpacked(std::string_view bytes);

}  // namespace keel::tools
