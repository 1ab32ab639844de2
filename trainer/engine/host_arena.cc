#include "trainer/engine/host_arena.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "common/memory/page_memory.h"
#include "common/status.h"

namespace keel::trainer {

HostArena::HostArena(int64_t bytes, parallel::CudaModule* cuda) : bytes_(bytes) {
  constexpr const char* kWayOut =
      "use fewer ranks on this node, or switch off actor_rollout_ref.actor.megatron.param_offload "
      "or optimizer_offload";
  if (cuda != nullptr) {
    const Result<void*> pinned = cuda->AllocatePinned(static_cast<size_t>(bytes));
    if (!pinned.ok()) {
      throw Error(StatusCode::kUnavailable, fmt::format("host arena of {} bytes, pinned: {}; {}",
                                                        bytes, pinned.status().message(), kWayOut));
    }
    memory_ = {static_cast<std::byte*>(*pinned), [cuda](std::byte* p) { cuda->FreePinned(p); }};
    return;
  }
  PageMemory pages = AllocatePages(bytes);
  if (pages == nullptr) {
    throw Error(StatusCode::kUnavailable,
                fmt::format("host arena of {} bytes: no memory; {}", bytes, kWayOut));
  }
  memory_ = {pages.release(), FreePages()};
  TouchPages(memory_.get(), bytes, at::get_num_threads());
}

}  // namespace keel::trainer
