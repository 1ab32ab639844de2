#include "common/shared_module.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>

namespace keel {

namespace {

// The loader waits for a pipe, and maps what a copy that was cut short does not have: to touch that
// would end the process without a word.
Status CheckWhole(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Status::FromErrno(errno, "stat", path);
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kUnavailable, "the module " + path + " is not a regular file");
  ElfW(Ehdr) header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  const uint64_t least = header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize;
  if (static_cast<uint64_t>(info.st_size) >= least) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                "the module " + path + " is cut off: it has " + std::to_string(info.st_size) +
                    " bytes, its header says " + std::to_string(least) + "; install it again");
}

}  // namespace

std::string ProgramPath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  return std::string(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

std::string ProgramDirectory() {
  const std::string path = ProgramPath();
  return path.substr(0, path.rfind('/') + 1);
}

Result<SharedModule> OpenModule(std::string_view file, Binding binding) {
  const std::string beside = ProgramDirectory() + std::string(file);
  const std::string installed = ProgramDirectory() + "../lib/keel/" + std::string(file);
  const std::string& path = access(beside.c_str(), F_OK) == 0 ? beside : installed;
  if (access(path.c_str(), F_OK) != 0) {
    return Status(StatusCode::kUnavailable, "the module " + std::string(file) +
                                                " is missing: it is neither " + beside + " nor " +
                                                installed);
  }
  KEEL_RETURN_IF_ERROR(CheckWhole(path));
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
