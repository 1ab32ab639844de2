#include "common/shared_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

namespace keel {

namespace {

// Of the running program, with a slash at its end.
std::string ProgramDirectory() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string text(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return text.substr(0, text.rfind('/') + 1);
}

}  // namespace

Result<SharedModule> OpenModule(std::string_view file, Binding binding) {
  const std::string beside = ProgramDirectory() + std::string(file);
  const std::string installed = ProgramDirectory() + "../lib/keel/" + std::string(file);
  const std::string& path = access(beside.c_str(), F_OK) == 0 ? beside : installed;
  if (access(path.c_str(), F_OK) != 0) {
    return Status(StatusCode::kUnavailable, "the module " + std::string(file) +
                                                " is missing: it is neither " + beside + " nor " +
                                                installed);
  }
  const int when = binding == Binding::kNow ? RTLD_NOW : RTLD_LAZY;
  void* handle = dlopen(path.c_str(), when | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Status(StatusCode::kUnavailable, "the module " + path + " cannot be loaded (" +
                                                (reason != nullptr ? reason : "no reason given") +
                                                ")");
  }
  return SharedModule{handle, path};
}

}  // namespace keel
