#include "parallel/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <mutex>

namespace keel::parallel {

namespace {

// The directory of the running program, with a slash.
std::string ProgramDirectory() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string text(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return text.substr(0, text.rfind('/') + 1);
}

}  // namespace

Result<CudaModule*> LoadCudaModule() {
  // A shared object is loaded once a process, whoever asks: the state is the dynamic linker's.
  static std::mutex mutex;
  static CudaModule* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  const std::string path = ProgramDirectory() + "libkeel_cuda.so";
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Status(
        StatusCode::kUnavailable,
        fmt::format(
            "device cuda: the module {} cannot be loaded ({}); it is built where nvcc is found, or "
            "set trainer.device to cpu",
            path, reason != nullptr ? reason : "no reason given"));
  }
  using Entry = CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "keel_cuda_module"));
  if (entry == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("device cuda: {} is not Keel's module", path));
  }
  loaded = entry();
  return loaded;
}

}  // namespace keel::parallel
