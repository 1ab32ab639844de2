#include "parallel/groups/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

#include "common/process/shared_module.h"
#include "common/process/wheel_library.h"

namespace keel::parallel {

namespace {

Result<SharedModule> OpenIt() {
  // Tests have a module for machines without a GPU.
  if (const char* const named = std::getenv("KEEL_CUDA_MODULE")) {
    KEEL_RETURN_IF_ERROR(LoadLibrary(named).WithContext("KEEL_CUDA_MODULE"));
    return SharedModule{RTLD_DEFAULT, named};
  }
  // Of the same PyTorch that has been loaded; what an installed module finds no other way.
  const Status cuda = LoadNeighbours("libtorch_cpu.so", {"libc10_cuda.so", "libtorch_cuda.so"});
  const auto opened = OpenModule("libkeel_cuda.so", Binding::kNow);
  if (opened.ok()) return opened;
  return Status(
      StatusCode::kUnavailable,
      fmt::format("device cuda: {}{}; it is built where the torch wheel is one with CUDA, and runs "
                  "with such a one; or set trainer.device to cpu",
                  opened.status().message(), cuda.ok() ? "" : " (" + cuda.message() + ")"));
}

}  // namespace

Result<CudaModule*> LoadCudaModule() {
  // A shared object is loaded once a process, whoever asks: the state is the dynamic linker's.
  static std::mutex mutex;
  static CudaModule* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  KEEL_ASSIGN_OR_RETURN(const SharedModule module, OpenIt());
  using Entry = CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(module.handle, "keel_cuda_module"));
  if (entry == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("device cuda: {} is not Keel's module", module.path));
  }
  loaded = entry();
  return loaded;
}

}  // namespace keel::parallel
