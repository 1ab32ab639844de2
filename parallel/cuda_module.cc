#include "parallel/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

#include "common/shared_module.h"

namespace keel::parallel {

Result<CudaModule*> LoadCudaModule() {
  // A shared object is loaded once a process, whoever asks: the state is the dynamic linker's.
  static std::mutex mutex;
  static CudaModule* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  const auto opened = OpenModule("libkeel_cuda.so", Binding::kNow);
  if (!opened.ok()) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format("device cuda: {}; it is built where the torch wheel is one with CUDA, or set "
                    "trainer.device to cpu",
                    opened.status().message()));
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
