// Beside: work on a thread of its own, which uses the device beside what the calling thread gives
// it.
//
// On a GPU it has a stream of its own. On one stream two threads' operations would wait for each
// other's, and where ranks begin them in different orders, for ever.
#pragma once

#include <ATen/ATen.h>

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "parallel/groups/cuda_module.h"

namespace keel::parallel {

// `work` returns a value, and is done on the device, too, when the future is ready. It comes after
// what the calling thread's stream has been given so far.
template <typename Work>
auto Beside(const at::Device& device, Work work) -> std::future<decltype(work())> {
  std::shared_ptr<SideStream> side;
  if (!device.is_cpu()) side = ValueOrThrow(LoadCudaModule())->MakeSideStream();
  return std::async(std::launch::async, [side, work = std::move(work)]() mutable {
    if (side == nullptr) return work();
    std::optional<decltype(work())> result;
    side->Run([&] { result.emplace(work()); });
    return std::move(*result);
  });
}

}  // namespace keel::parallel
