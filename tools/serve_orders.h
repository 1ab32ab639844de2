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

struct ServeOrders {
  std::vector<std::pair<uint64_t, int>> take;  // prompt id and sample of what nobody waits for
  std::vector<rollout::Request> add;           // after that, in this order

  bool empty() const { return take.empty() && add.empty(); }
};

// Between programs of one build. Requests have no response so far.
std::string Packed(const ServeOrders& orders);
Result<ServeOrders> Unpacked(std::string_view bytes);

}  // namespace keel::tools
