#include "parallel/groups/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

#include "common/shared_module.h"
#include "common/wheel_library.h"

namespace keel::parallel {

Result<CudaModule*> LoadCudaModule() {
  // A shared object is loaded once a process, whoever asks: the state is the dynamic linker's.
  static std::mutex mutex;
  static CudaModule* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  // Of the same PyTorch that has been loaded; what an installed module finds no other way.
  const Status cuda = LoadNeighbours("libtorch_cpu.so", {"libc10_cuda.so", "libtorch_cuda.so"});
  const auto opened = OpenModule("libkeel_cuda.so", Binding::kNow);
  if (!opened.ok()) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format(
            "device cuda: {}{}; it is built where the torch wheel is one with CUDA, and runs "
            "with such a one; or set trainer.device to cpu",
            opened.status().message(), cuda.ok() ? "" : " (" + cuda.message() + ")"));
  }
  using Entry = CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(opened->handle, "keel_cuda_module"));
  if (entry == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("device cuda: {} is not Keel's module", opened->path));
  }
  loaded = entry();
  return loaded;
}

}  // namespace keel::parallel
