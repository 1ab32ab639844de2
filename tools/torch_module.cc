#include "tools/torch_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>

#include "common/process/shared_module.h"
#include "common/process/wheel_library.h"
#ifndef KEEL_TORCH_BUILD_ID  // else there is no module to be built with
#include "keel_torch_build_id.h"
#endif

namespace keel::tools {

namespace {

std::atomic<TorchModule*> torch_module{nullptr};

}  // namespace

TorchModule& LoadTorchModule() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (torch_module != nullptr) return *torch_module;
  // Intel's library in it ends a process that has no working directory, and names another cause.
  std::error_code error;
  (void)std::filesystem::current_path(error);
  if (error) {
    throw Error(StatusCode::kNotFound,
                fmt::format("the directory that keel was started in is gone ({}): change to one "
                            "that is there",
                            error.message()));
  }
  // Lazily, as a program's own libraries are: libtorch has more symbols than a command uses. For
  // all to see: keel_cuda takes what it shares from it.
  const auto opened = OpenModule("libkeel_torch.so", Binding::kLazy, &TorchWheel());
  if (!opened.ok()) {
    throw Error(
        opened.status().WithContext("this command needs PyTorch's library (keel train, rollout, "
                                    "score, generate, chat, eval, serve)"));
  }
  using Entry = TorchModule* (*)();
  void* const address = dlsym(opened->handle, "keel_torch_module");
  ThrowIfError(CheckBuild(*opened, address, KEEL_TORCH_BUILD_ID));
  torch_module = reinterpret_cast<Entry>(address)();
  return *torch_module;
}

bool HasTorchModule() { return torch_module != nullptr; }

}  // namespace keel::tools
